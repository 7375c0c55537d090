"""Operators' requests about groups over the network: members, leaders, status, snapshots."""

import asyncio

import msgspec

from raftwood.base.errors import NotLeader, RaftwoodError
from raftwood.net import Call, Connection, Service, TypedMethod
from raftwood.net.identity import OPERATOR_ROLE
from raftwood.net.method_numbers import MethodNumber
from raftwood.net.stores import Stores
from raftwood.raft.membership import MemberStep
from raftwood.raft.node_host import GroupStatus, NodeHost

ADMIN_TIMEOUT_MS = 30_000


class MemberChange(msgspec.Struct, frozen=True, array_like=True):
    """Steps that take effect together."""

    group: int
    steps: list[MemberStep]


class LeaderTransfer(msgspec.Struct, frozen=True, array_like=True):
    """Asks the leader to hand over to another store."""

    group: int
    store: int


_OPERATORS = (OPERATOR_ROLE,)
"""The roles that may change anything; every role may ask."""

GROUPS = TypedMethod(
    MethodNumber.RAFT_GROUPS, "raft-groups", request=type(None), response=list[int]
)
STATUS = TypedMethod(MethodNumber.RAFT_STATUS, "raft-status", request=int, response=GroupStatus)
CHANGE_MEMBERS = TypedMethod(
    MethodNumber.RAFT_CHANGE_MEMBERS,
    "raft-change-members",
    request=MemberChange,
    response=GroupStatus,
    roles=_OPERATORS,
)
TRANSFER = TypedMethod(
    MethodNumber.RAFT_TRANSFER,
    "raft-transfer",
    request=LeaderTransfer,
    response=GroupStatus,
    roles=_OPERATORS,
)
SNAPSHOT = TypedMethod(
    MethodNumber.RAFT_SNAPSHOT, "raft-snapshot", request=int, response=int, roles=_OPERATORS
)


class RaftAdminService:
    """Serves one host's groups to operators."""

    def __init__(self, host: NodeHost) -> None:
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

    async def _transfer(self, _: Call, transfer: LeaderTransfer) -> GroupStatus:
        await self._host.transfer_leadership(
            transfer.group, transfer.store, timeout_ms=ADMIN_TIMEOUT_MS
        )
        return self._host.status(transfer.group)

    async def _snapshot(self, _: Call, group: int) -> int:
        index = await self._host.snapshot(group)
        freeable = self._host.freeable_index(group)
        if self._host.status(group).snapshots[0] <= freeable:
            await self._host.compact(group, min(index, freeable))
        return index


async def ask_members(group: int, connection: Connection, timeout_ms: int) -> dict[int, str]:
    """Asks a store for the addresses of a group's members."""
    return (await connection.ask(STATUS, group, timeout_ms)).addresses


class RaftAdmin:
    """The operator's side; every call is one attempt, whose error names the store to ask."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def status(self, group: int, *, store: int, timeout_ms: int = 5_000) -> GroupStatus:
        """Returns the status of one store's replica, as that store sees it."""
        channel = await self._stores.connected(store, timeout_ms)
        return await channel.ask(STATUS, group, timeout_ms)

    async def leader_status(self, group: int, *, timeout_ms: int = 5_000) -> GroupStatus:
        """Asks all stores at once; returns the status of the one that leads."""
        asked: dict[int, asyncio.Task[GroupStatus]] = {}
        try:
            return await self._find_leader(group, asked, timeout_ms)
        finally:
            for task in asked.values():
                task.cancel()
            await asyncio.gather(*asked.values(), return_exceptions=True)

    async def _find_leader(
        self, group: int, asked: dict[int, asyncio.Task[GroupStatus]], timeout_ms: int
    ) -> GroupStatus:
        waiting: dict[int, asyncio.Task[GroupStatus]] = {}
        reasons: list[str] = []
        while True:
            for store in self._stores.known():  # this grows: answers contain further stores
                if store not in asked:
                    question = self.status(group, store=store, timeout_ms=timeout_ms)
                    asked[store] = waiting[store] = asyncio.create_task(question)
            if not waiting:
                raise NotLeader(
                    f"group {group} has no leader: see that a majority of its stores runs "
                    f"({'; '.join(reasons)})"
                )
            await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            for store in [store for store, task in waiting.items() if task.done()]:
                try:
                    status = waiting.pop(store).result()
                except RaftwoodError as error:
                    reasons.append(error.message)
                    continue
                self._stores.learn(status.addresses)
                if status.leader == store:
                    return status
                reasons.append(f"store {store} does not lead")

    async def change_members(
        self, group: int, steps: list[MemberStep], *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> GroupStatus:
        """Adds, promotes, demotes or removes stores; `Conflict` if the change does not fit."""
        leader = await self.leader_status(group)
        channel = await self._stores.connected(leader.store, timeout_ms)
        return await channel.ask(CHANGE_MEMBERS, MemberChange(group, steps), timeout_ms)

    async def transfer(
        self, group: int, store: int, *, timeout_ms: int = ADMIN_TIMEOUT_MS
    ) -> GroupStatus:
        """Hands the leadership over to another voter."""
        leader = await self.leader_status(group)
        channel = await self._stores.connected(leader.store, timeout_ms)
        return await channel.ask(TRANSFER, LeaderTransfer(group, store), timeout_ms)

    async def snapshot(self, group: int, *, store: int, timeout_ms: int = ADMIN_TIMEOUT_MS) -> int:
        """Takes a snapshot at one store, and cuts the log before it."""
        channel = await self._stores.connected(store, timeout_ms)
        return await channel.ask(SNAPSHOT, group, timeout_ms)
