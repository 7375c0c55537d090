"""`MetaClient`: Zeppelin's meta server, seen from operators, nodes and clients.

A watch is a question that waits at the leader's store for a change, asked again and again.
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
"""A watch's question waits so long at the store."""
PAUSE_MS_MIN: Final = 5
"""So that many changes at once are told together."""
PAUSE_MS_MAX: Final = 500
_LEADER_ONLY_MS: Final = 1
"""A question that could wait, be it for so long, is answered by the leader and nobody else."""


class MetaGroupClient(Protocol):
    """What finds a group's leader and talks to it."""

    def propose(self, group: int, command: bytes, *, timeout_ms: int) -> Awaitable[bytes]:
        """The result of a command, which is applied exactly once."""
        ...

    def read(
        self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0
    ) -> Awaitable[bytes]:
        """The answer from a state with all that was answered to anybody before the call.

        Where `wait_ms` is given, from the leader: once it has something to tell, or after that.
        """
        ...

    def heartbeat(
        self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0
    ) -> Awaitable[bytes]:
        """As `read`; it goes before other clients'."""
        ...


class MetaClient:
    """The group's client stays its owner's."""

    def __init__(
        self, client: MetaGroupClient, group: int, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self._client = client
        self._group = group
        self._timeout_ms = timeout_ms

    # For operators

    async def create_table(self, name: str, config: TableConfig) -> int:
        """The epoch from which on it is there; `wait_applied` waits until nodes have it."""
        return await self._change(CreateTable(name, config))

    async def drop_table(self, name: str) -> int:
        return await self._change(DropTable(name))

    async def set_reads(self, table: str, reads: Reads | None) -> int:
        """What reads of a table tell; the caller has seen that all stores know this change."""
        return await self._change(SetReads(table, reads))

    async def add_user(self, user: User) -> int:
        return await self._change(AddUser(user))

    async def set_password(self, user: str, password_hash: str) -> int:
        return await self._change(SetPassword(user, password_hash))

    async def remove_user(self, name: str) -> int:
        return await self._change(RemoveUser(name))

    async def remove_node(self, node: NodeId) -> int:
        """Forget a node that is down and has nothing."""
        return await self._change(RemoveNode(node))

    async def set_master(self, table: str, partition: int, node: NodeId) -> int:
        """Prefer a replica as master; it becomes that by a hand-over, once it is close."""
        return await self._change(SetMaster(table, partition, node))

    async def force_master(self, table: str, partition: int, node: NodeId) -> int:
        """Give a partition without a master one that may have missed writes: they are lost."""
        return await self._change(ForceMaster(table, partition, node))

    async def add_slave(self, table: str, partition: int, node: NodeId) -> int:
        return await self._change(AddSlave(table, partition, node))

    async def remove_slave(self, table: str, partition: int, node: NodeId) -> int:
        return await self._change(RemoveSlave(table, partition, node))

    async def migrate(self, table: str, partition: int, source: NodeId, target: NodeId) -> int:
        """Move a replica to a node that has none; the epoch is the `plan` of the migration."""
        return await self._change(Migrate(table, partition, source, target))

    async def cancel_migration(self, table: str, partition: int) -> int:
        """Leave a replica where it is; `Conflict` once its target is master."""
        return await self._change(CancelMigration(table, partition))

    async def set_draining(self, node: NodeId, *, is_draining: bool) -> int:
        """Give a node nothing new from now on; what it has stays until it is moved."""
        return await self._change(SetDraining(node, is_draining))

    async def apply_planned(self, epoch: int, *changes: Change) -> int:
        """All of what was planned on a topology, or nothing: `Conflict` where it has changed."""
        return await self._change(AtEpoch(epoch), *changes)

    async def double_partitions(self, table: str) -> int:
        """Let a table have twice as many partitions: each is split in its turn, while it is used.
        It is done once the topology's `Table.is_doubling` is false.
        """
        return await self._change(DoublePartitions(table))

    async def apply(self, *changes: Change) -> Applied:
        """Several changes as one step of the epoch; each is made or refused by itself."""
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
        """What nodes have told the leader: how far they are, and when they said so."""
        query = ReportsQuery()
        return (await self._ask(query, ReportsAnswer, wait_ms=_LEADER_ONLY_MS)).reports

    async def wait_applied(self, epoch: int, *, timeout_ms: int = TIMEOUT_MS) -> None:
        """Until all nodes that are up have applied an epoch; else `DeadlineExceeded`."""
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
        """Tell of a node that has started; `run` is one that it has never had before."""
        return await self._change(RegisterNode(node, addresses, failure_domain, run))

    async def heartbeat(self, heartbeat: NodeHeartbeat, *, timeout_ms: int) -> LeaseAnswer:
        """See `LeaseAnswer`. `NotFound` and `Conflict` ask for `register`."""
        data = await self._client.heartbeat(
            self._group, encode_query(heartbeat), timeout_ms=timeout_ms, wait_ms=_LEADER_ONLY_MS
        )
        return decode_answer(data, LeaseAnswer)

    # For everybody

    async def topology(self) -> Topology:
        """Everything, from whichever store."""
        delta = (await self._ask(TopologyQuery(EPOCH_NONE), TopologyAnswer)).delta
        return applied(Topology(), delta)

    async def changes(self, after_epoch: int, *, wait_ms: int = WAIT_MS) -> Delta:
        """What has changed since an epoch, once something has or after `wait_ms`."""
        return (await self._ask(TopologyQuery(after_epoch), TopologyAnswer, wait_ms=wait_ms)).delta

    async def watch(self, after_epoch: int) -> AsyncIterator[Delta]:
        """What changes after an epoch, for ever; while nobody answers it asks on."""
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
