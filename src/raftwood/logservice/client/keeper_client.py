"""`KeeperClient`: what operators, services and stores say to HAKeeper, wherever its leader is."""

from typing import Final

from raftwood.logservice.client.shard_link import ShardLink
from raftwood.logservice.hakeeper.commands import (
    Command,
    Success,
    check_command,
    decode_id,
    decode_result,
    encode_command,
)
from raftwood.logservice.hakeeper.orders import Orders
from raftwood.logservice.hakeeper.reports import (
    HAKEEPER_SHARD,
    ServiceHeartbeat,
    StoreHeartbeat,
)
from raftwood.logservice.hakeeper.views import (
    AnswerType,
    ClusterView,
    DescribeCluster,
    FindShard,
    ListLogs,
    LogNames,
    Query,
    ShardView,
    decode_answer,
    encode_query,
)
from raftwood.logservice.wire import (
    ALLOCATE_IDS,
    KEEPER_COMMAND,
    KEEPER_QUERY,
    SERVICE_HEARTBEAT,
    STORE_HEARTBEAT,
)
from raftwood.net.stores import Stores

TIMEOUT_MS: Final = 10_000


class KeeperClient:
    """The connections are shared with others; every call may be carried out more than once."""

    def __init__(self, stores: Stores, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._link = ShardLink(stores, HAKEEPER_SHARD)
        self._timeout_ms = timeout_ms

    @property
    def leader(self) -> int:
        """The store that leads HAKeeper, as far as is known; else some store."""
        return self._link.guess()

    async def command(self, command: Command) -> Success:
        """For operators: change the cluster; the command's own errors are raised."""
        check_command(command)
        return decode_result(await self._command(command))

    async def number(self, command: Command) -> int:
        """As `command`, for one that makes something: its number."""
        check_command(command)
        return decode_id(await self._command(command))

    async def _command(self, command: Command) -> bytes:
        answer = await self._link.ask_raw(
            KEEPER_COMMAND, encode_command(command), timeout_ms=self._timeout_ms
        )
        return bytes(answer)

    async def query(self, query: Query, expected: type[AnswerType]) -> AnswerType:
        answer = await self._link.ask_raw(
            KEEPER_QUERY, encode_query(query), timeout_ms=self._timeout_ms
        )
        return decode_answer(bytes(answer), expected)

    async def describe(self) -> ClusterView:
        return await self.query(DescribeCluster(), ClusterView)

    async def find_shard(self, shard: int | str) -> ShardView:
        query = FindShard(shard) if isinstance(shard, int) else FindShard(name=shard)
        return await self.query(query, ShardView)

    async def log_names(self, prefix: str) -> list[str]:
        """Of the logs whose names begin so, in order."""
        return (await self.query(ListLogs(prefix), LogNames)).names

    async def store_heartbeat(self, heartbeat: StoreHeartbeat, *, timeout_ms: int) -> Orders:
        return await self._link.ask(STORE_HEARTBEAT, heartbeat, timeout_ms=timeout_ms)

    async def service_heartbeat(self, heartbeat: ServiceHeartbeat, *, timeout_ms: int) -> Orders:
        """A service's word; the answer tells it what to do."""
        return await self._link.ask(SERVICE_HEARTBEAT, heartbeat, timeout_ms=timeout_ms)

    async def allocate_ids(self, count: int = 1) -> int:
        """The first of so many numbers that nobody else ever gets."""
        return await self._link.ask(ALLOCATE_IDS, count, timeout_ms=self._timeout_ms)

    async def close(self) -> None:
        await self._link.close()
