"""`MetaClient`: the client of Zeppelin's meta server, for operators, nodes and clients.

A watch repeats a query that waits at the leader's store for a change.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Final, Protocol

from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.zeppelin.meta.changes import (
    AddSlave,
    AddUser,
    Applied,
    AtEpoch,
    CancelMigration,
    Change,
    CreateTable,
    DoublePartitions,
    DropTable,
    ForceMaster,
    Migrate,
    RegisterNode,
    RemoveNode,
    RemoveSlave,
    RemoveUser,
    SetDraining,
    SetMaster,
    SetPassword,
    SetReads,
    decode_applied,
    encode_batch,
)
from raftwood.zeppelin.meta.deltas import Delta, applied
from raftwood.zeppelin.meta.heartbeats import NodeHeartbeat
from raftwood.zeppelin.meta.queries import (
    AnswerType,
    BehindQuery,
    LeaseAnswer,
    NodeReport,
    NodesAnswer,
    Query,
    ReportsAnswer,
    ReportsQuery,
    TopologyAnswer,
    TopologyQuery,
    decode_answer,
    encode_query,
)
from raftwood.zeppelin.model import (
    EPOCH_NONE,
    NodeAddresses,
    NodeId,
    Reads,
    TableConfig,
    Topology,
    User,
)

TIMEOUT_MS: Final = 10_000
WAIT_MS: Final = 5_000
"""How long a watch's query waits at the store."""
PAUSE_MS_MIN: Final = 5
"""Pause between two queries of a watch, so that many changes arrive together."""
PAUSE_MS_MAX: Final = 500
_LEADER_ONLY_MS: Final = 1
"""Only the leader answers a query that may wait; this is the shortest such wait."""


class MetaGroupClient(Protocol):
    """Finds a group's leader and sends it commands and queries."""

    def propose(self, group: int, command: bytes, *, timeout_ms: int) -> Awaitable[bytes]:
        """Returns the result of a command, which is applied exactly once."""
        ...

    def read(
        self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0
    ) -> Awaitable[bytes]:
        """Answers from a state that includes everything answered to any client before the call.

        With `wait_ms` the leader answers: once it has news, or after that time.
        """
        ...

    def heartbeat(
        self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0
    ) -> Awaitable[bytes]:
        """Like `read`, but goes ahead of other requests."""
        ...


class MetaClient:
    """Queries and changes the meta server; the caller closes the group's client."""

    def __init__(
        self, client: MetaGroupClient, group: int, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self._client = client
        self._group = group
        self._timeout_ms = timeout_ms

    # For operators

    async def create_table(self, name: str, config: TableConfig) -> int:
        """Returns the epoch at which the table exists; `wait_applied` waits until nodes have it."""
        return await self._change(CreateTable(name, config))

    async def drop_table(self, name: str) -> int:
        return await self._change(DropTable(name))

    async def set_reads(self, table: str, reads: Reads | None) -> int:
        """Sets which values reads return; the caller has checked that all stores know this."""
        return await self._change(SetReads(table, reads))

    async def add_user(self, user: User) -> int:
        return await self._change(AddUser(user))

    async def set_password(self, user: str, password_hash: str) -> int:
        return await self._change(SetPassword(user, password_hash))

    async def remove_user(self, name: str) -> int:
        return await self._change(RemoveUser(name))

    async def remove_node(self, node: NodeId) -> int:
        """Forgets a node that is down and has no partitions."""
        return await self._change(RemoveNode(node))

    async def set_master(self, table: str, partition: int, node: NodeId) -> int:
        """Makes a replica the preferred master; a hand-over follows once it is close."""
        return await self._change(SetMaster(table, partition, node))

    async def force_master(self, table: str, partition: int, node: NodeId) -> int:
        """Makes a replica master of a partition without one; writes that it lacks are lost."""
        return await self._change(ForceMaster(table, partition, node))

    async def add_slave(self, table: str, partition: int, node: NodeId) -> int:
        return await self._change(AddSlave(table, partition, node))

    async def remove_slave(self, table: str, partition: int, node: NodeId) -> int:
        return await self._change(RemoveSlave(table, partition, node))

    async def migrate(self, table: str, partition: int, source: NodeId, target: NodeId) -> int:
        """Moves a replica to a node without one; the returned epoch is the migration's `plan`."""
        return await self._change(Migrate(table, partition, source, target))

    async def cancel_migration(self, table: str, partition: int) -> int:
        """Leaves a replica where it is; raises `Conflict` once the target is master."""
        return await self._change(CancelMigration(table, partition))

    async def set_draining(self, node: NodeId, *, is_draining: bool) -> int:
        """Drains a node: it gets nothing new, but keeps its partitions until they are moved."""
        return await self._change(SetDraining(node, is_draining))

    async def apply_planned(self, epoch: int, *changes: Change) -> int:
        """Makes all changes of a plan or none; raises `Conflict` if the topology has changed."""
        return await self._change(AtEpoch(epoch), *changes)

    async def double_partitions(self, table: str) -> int:
        """Doubles a table's partitions: they split one after the other, in use. Done once the
        topology's `Table.is_doubling` is false.
        """
        return await self._change(DoublePartitions(table))

    async def apply(self, *changes: Change) -> Applied:
        """Makes several changes in one step of the epoch; each is made or refused by itself."""
        data = await self._client.propose(
            self._group, encode_batch(changes), timeout_ms=self._timeout_ms
        )
        return decode_applied(data)

    async def _change(self, *changes: Change) -> int:
        done = await self.apply(*changes)
        for refused in done.results:
            if refused is not None:
                raise refused.error()
        return done.epoch

    async def reports(self) -> dict[NodeId, NodeReport]:
        """Returns the nodes' latest reports to the leader."""
        query = ReportsQuery()
        return (await self._ask(query, ReportsAnswer, wait_ms=_LEADER_ONLY_MS)).reports

    async def wait_applied(self, epoch: int, *, timeout_ms: int = TIMEOUT_MS) -> None:
        """Waits until all nodes that are up have applied an epoch, or `DeadlineExceeded`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            remaining_ms = int((deadline - loop.time()) * 1000)
            wait_ms = max(1, min(WAIT_MS, remaining_ms))
            behind = (await self._ask(BehindQuery(epoch), NodesAnswer, wait_ms=wait_ms)).nodes
            if not behind:
                return
            if remaining_ms <= 0:
                raise DeadlineExceeded(
                    f"nodes {', '.join(behind[:10])} have not applied epoch {epoch}: see whether "
                    "they are well"
                )
            await asyncio.sleep(PAUSE_MS_MIN / 1000)

    # For nodes

    async def register(
        self, node: NodeId, addresses: NodeAddresses, *, failure_domain: str, run: int
    ) -> int:
        """Registers a node that has started, with a `run` that it never had before."""
        return await self._change(RegisterNode(node, addresses, failure_domain, run))

    async def heartbeat(self, heartbeat: NodeHeartbeat, *, timeout_ms: int) -> LeaseAnswer:
        """Sends a heartbeat; returns the lease. On `NotFound` and `Conflict`, `register`."""
        data = await self._client.heartbeat(
            self._group, encode_query(heartbeat), timeout_ms=timeout_ms, wait_ms=_LEADER_ONLY_MS
        )
        return decode_answer(data, LeaseAnswer)

    # For all

    async def topology(self) -> Topology:
        """Returns the whole topology, from any store."""
        delta = (await self._ask(TopologyQuery(EPOCH_NONE), TopologyAnswer)).delta
        return applied(Topology(), delta)

    async def changes(self, after_epoch: int, *, wait_ms: int = WAIT_MS) -> Delta:
        """Returns the changes since an epoch, once there are some or after `wait_ms`."""
        return (await self._ask(TopologyQuery(after_epoch), TopologyAnswer, wait_ms=wait_ms)).delta

    async def watch(self, after_epoch: int) -> AsyncIterator[Delta]:
        """Yields all changes after an epoch, for ever; repeats the query while no store answers."""
        pause_ms = PAUSE_MS_MIN
        while True:
            try:
                delta = await self.changes(after_epoch)
            except RaftwoodError as error:
                if not error.retriable:
                    raise
            else:
                if delta.epoch != after_epoch:
                    yield delta
                    after_epoch, pause_ms = delta.epoch, PAUSE_MS_MIN
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)

    async def _ask(
        self,
        query: Query,
        expected: type[AnswerType],
        *,
        wait_ms: int = 0,
        timeout_ms: int | None = None,
    ) -> AnswerType:
        data = await self._client.read(
            self._group,
            encode_query(query),
            timeout_ms=timeout_ms or self._timeout_ms,
            wait_ms=wait_ms,
        )
        return decode_answer(data, expected)
