"""What operators ask of groups over the network: who is in them, who leads, and what they hold."""

import asyncio

import msgspec

from raftwood.base.errors import NotLeader, RaftwoodError
from raftwood.net import Call, Service, TypedMethod
from raftwood.raft.host.host import Host
from raftwood.raft.host.membership import MemberStep
from raftwood.raft.host.status import GroupStatus
from raftwood.raft.remote.stores import Stores

ADMIN_TIMEOUT_MS = 30_000


class MemberChange(msgspec.Struct, frozen=True, array_like=True):
    """Steps that take effect together."""

    group: int
    steps: list[MemberStep]


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """Another store shall lead."""

    group: int
    store: int


GROUPS = TypedMethod(35, "raft-groups", request=type(None), response=list[int])
STATUS = TypedMethod(36, "raft-status", request=int, response=GroupStatus)
CHANGE_MEMBERS = TypedMethod(37, "raft-change-members", request=MemberChange, response=GroupStatus)
TRANSFER = TypedMethod(38, "raft-transfer", request=Transfer, response=GroupStatus)
SNAPSHOT = TypedMethod(39, "raft-snapshot", request=int, response=int)


class RaftAdminService:
    """Serves one host's groups to operators."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def register(self, service: Service) -> None:
        service.typed(GROUPS, self._groups)
        service.typed(STATUS, self._status)
        service.typed(CHANGE_MEMBERS, self._change_members)
        service.typed(TRANSFER, self._transfer)
        service.typed(SNAPSHOT, self._snapshot)

    async def _groups(self, _: Call, __: None) -> list[int]:
        return sorted({*self._host.groups(), *self._host.halted()})

    async def _status(self, _: Call, group: int) -> GroupStatus:
        return self._host.status(group)

    async def _change_members(self, _: Call, change: MemberChange) -> GroupStatus:
        await self._host.change_members(change.group, change.steps, timeout_ms=ADMIN_TIMEOUT_MS)
        return self._host.status(change.group)

    async def _transfer(self, _: Call, transfer: Transfer) -> GroupStatus:
        await self._host.transfer_leadership(
            transfer.group, transfer.store, timeout_ms=ADMIN_TIMEOUT_MS
        )
        return self._host.status(transfer.group)

    async def _snapshot(self, _: Call, group: int) -> int:
        index = await self._host.snapshot(group)
        return await self._host.compact(group, index)


class RaftAdmin:
    """The operator's side; every call is one attempt, and says where to go if it went wrong."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def status(self, group: int, *, store: int, timeout_ms: int = 5_000) -> GroupStatus:
        """One store's replica as that store sees it."""
        channel = await self._stores.connected(store, timeout_ms)
        return await channel.ask(STATUS, group, timeout_ms)

    async def leader_status(self, group: int, *, timeout_ms: int = 5_000) -> GroupStatus:
        """The leader's view; all stores are asked at once, and the first that knows one counts."""
        error: RaftwoodError = NotLeader(f"no store says who leads group {group}: try again")
        asked = [
            asyncio.create_task(self.status(group, store=store, timeout_ms=timeout_ms))
            for store in self._stores.known()
        ]
        waiting = asked
        try:
            while waiting:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # Not in the order of a set: simulations must repeat.
                done = [task for task in waiting if task.done()]
                waiting = [task for task in waiting if task not in done]
                for task in done:
                    try:
                        return await self._leader_by(task.result(), timeout_ms)
                    except RaftwoodError as failed:
                        error = failed
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise error

    async def _leader_by(self, status: GroupStatus, timeout_ms: int) -> GroupStatus:
        """The leader's view, by what another store says of it."""
        self._stores.learn(status.addresses)
        if status.leader == status.store:
            return status
        if not status.leader:
            raise NotLeader(f"store {status.store} knows no leader of group {status.group}")
        return await self.status(status.group, store=status.leader, timeout_ms=timeout_ms)

    async def change_members(
        self, group: int, steps: list[MemberStep], *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> GroupStatus:
        """Add, promote, demote or remove stores; `Conflict` where it does not fit."""
        leader = await self.leader_status(group)
        channel = await self._stores.connected(leader.store, timeout_ms)
        return await channel.ask(CHANGE_MEMBERS, MemberChange(group, steps), timeout_ms)

    async def transfer(
        self, group: int, store: int, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> GroupStatus:
        """Let another voter lead."""
        leader = await self.leader_status(group)
        channel = await self._stores.connected(leader.store, timeout_ms)
        return await channel.ask(TRANSFER, Transfer(group, store), timeout_ms)

    async def snapshot(self, group: int, *, store: int, timeout_ms: int = ADMIN_TIMEOUT_MS) -> int:
        """Take a snapshot at one store, and cut the log before it."""
        channel = await self._stores.connected(store, timeout_ms)
        return await channel.ask(SNAPSHOT, group, timeout_ms)
