"""An operator who changes groups while they are in use: members, leaders and snapshots."""

import asyncio
import random
from collections.abc import Mapping, Sequence

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.raft.client import AsyncRaftClient
from raftwood.raft.membership import MemberAction, MemberStep
from raftwood.raft.node_host import GroupStatus
from tests.kits.raft.hosts.store import CLIENT_NETWORK, GROUPS

VOTERS_MIN = 3
_TIMEOUT_MS = 5_000


class Operator:
    """Makes one change after another, each as the group's leader describes the group."""

    def __init__(self, stores: Mapping[int, str], *, every_s: float) -> None:
        self._stores = stores
        self._every_s = every_s
        self.counts: dict[str, int] = {}
        """What was carried out, by name."""

    async def run(self, environment: Environment, *, until: float) -> None:
        loop = asyncio.get_running_loop()
        source = random.Random(environment.random.getrandbits(64))
        async with AsyncRaftClient(environment, CLIENT_NETWORK, self._stores) as client:
            while loop.time() < until:
                await asyncio.sleep(source.uniform(0, 2 * self._every_s))
                try:
                    done = await self._act(client, source, source.choice(GROUPS))
                except RaftwoodError:
                    continue  # no leader, or it lost its place: the next one may go better
                self.counts[done] = self.counts.get(done, 0) + 1

    async def _act(self, client: AsyncRaftClient, source: random.Random, group: int) -> str:
        admin = client.admin
        status = await admin.leader_status(group, timeout_ms=_TIMEOUT_MS)
        choice = source.random()
        if choice < 0.1:
            store = source.choice(status.voters)
            await admin.transfer(group, store, timeout_ms=_TIMEOUT_MS)
            return "transfer"
        if choice < 0.2:
            store = source.choice(sorted(self._stores))
            await admin.snapshot(group, store=store, timeout_ms=_TIMEOUT_MS)
            return "snapshot"
        if choice < 0.3 and len(status.voters) > VOTERS_MIN:
            # Gone and back at once: what it is told about either may come late.
            store = source.choice(status.voters)
            await admin.change_members(
                group, [MemberStep(MemberAction.REMOVE, store)], timeout_ms=_TIMEOUT_MS
            )
            await asyncio.sleep(source.choice((0.0, 0.2, 1.0)))
            await admin.change_members(
                group, [_step(MemberAction.ADD_VOTER, store)], timeout_ms=_TIMEOUT_MS
            )
            return "remove and add again"
        name, steps = source.choice(changes_for(status, sorted(self._stores), source))
        await admin.change_members(group, steps, timeout_ms=_TIMEOUT_MS)
        return name


def changes_for(
    status: GroupStatus, stores: Sequence[int], source: random.Random
) -> list[tuple[str, list[MemberStep]]]:
    """Changes that make sense for a group as it is."""
    voters, learners = list(status.voters), list(status.learners)
    others = [store for store in stores if store not in voters and store not in learners]
    found: list[tuple[str, list[MemberStep]]] = []
    if others:
        new = source.choice(others)
        found.append(("add learner", [_step(MemberAction.ADD_LEARNER, new)]))
        found.append(("add voter", [_step(MemberAction.ADD_VOTER, new)]))
        old = source.choice(voters)
        steps = [_step(MemberAction.ADD_VOTER, new), MemberStep(MemberAction.REMOVE, old)]
        found.append(("replace", steps))
    if learners:
        learner = source.choice(learners)
        found.append(("promote", [_step(MemberAction.ADD_VOTER, learner)]))
        found.append(("remove learner", [MemberStep(MemberAction.REMOVE, learner)]))
    if len(voters) > VOTERS_MIN:
        voter = source.choice(voters)
        found.append(("remove voter", [MemberStep(MemberAction.REMOVE, voter)]))
        found.append(("demote", [_step(MemberAction.ADD_LEARNER, voter)]))
    return found


def _step(action: MemberAction, store: int) -> MemberStep:
    return MemberStep(action, store, f"s{store}:7000")
