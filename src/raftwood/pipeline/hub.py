"""`Hub`: a connection to one logstore for Spark's processes, which have no event loop.

A Python worker of Spark runs one task after the other, so a connection is kept for the next one.
"""

import gc
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Final, Self

from raftwood.base.environment import Environment
from raftwood.base.files import Buffer
from raftwood.base.position import Position, position_from_bytes, position_to_bytes
from raftwood.disk.loop_thread import LoopThread
from raftwood.loghub.client.gateways import Gateways, HubAccess
from raftwood.loghub.client.reader_checkpoints import ReaderCheckpoints
from raftwood.loghub.model import Shard
from raftwood.loghub.wire import (
    CURSOR,
    DESCRIBE,
    PULL,
    PUT,
    SHARDS,
    CursorRequest,
    Pulled,
    PullRequest,
    ShardDetail,
    StreamRequest,
    decode_pulled,
    encode_pull,
)
from raftwood.net import Secret
from raftwood.pipeline.connection_cache import ConnectionCache
from raftwood.pipeline.options import StreamAccess

PULL_BATCHES_MAX: Final = 4_096
HEADS_BYTES_MAX: Final = 8 << 20
"""Limit of batches in a request for heads: the gateway reads them whole."""
_ATTEMPT_MS: Final = 10_000


class Hub:
    """Call `connected`, or `connect` and `close`."""

    def __init__(self, access: StreamAccess, thread: LoopThread, gateways: Gateways) -> None:
        self._access = access
        self._thread = thread
        self._gateways = gateways
        self._groups: dict[str, ReaderCheckpoints] = {}

    @classmethod
    def connect(cls, access: StreamAccess) -> Self:
        """Connects, and returns once a gateway has answered."""
        hub_access = HubAccess(
            addresses=access.gateways,
            access_key=access.access_key,
            access_secret=Secret(access.access_secret).as_key(),
        )

        async def make(environment: Environment) -> Gateways:
            gateways = Gateways(environment, hub_access)
            try:
                await gateways.start(access.timeout_ms)
            except BaseException:
                await gateways.close()
                raise
            return gateways

        return cls(access, *LoopThread.with_client("raftwood-pipeline", make))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.stop(self._gateways.close)

    def begin(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Starts some work on the client's loop."""
        return self._thread.begin(work)

    # The logstore

    def details(self) -> list[ShardDetail]:
        """Returns every shard, with its first position and the one behind its last."""
        return self._thread.call(
            self._gateways.ask(DESCRIBE, self._stream(), timeout_ms=self._access.timeout_ms)
        )

    async def shards(self) -> list[Shard]:
        return await self._gateways.ask(SHARDS, self._stream(), timeout_ms=self._access.timeout_ms)

    def cursor(self, shard: int, time_s: int) -> Position:
        """Returns the position of the first batch received at a time or later."""
        request = CursorRequest(self._access.project, self._access.logstore, shard, time_s)
        found = self._thread.call(
            self._gateways.ask(CURSOR, request, timeout_ms=self._access.timeout_ms)
        )
        return position_from_bytes(found)

    def _stream(self) -> StreamRequest:
        return StreamRequest(self._access.project, self._access.logstore)

    def note(self, group: str, positions: Mapping[int, Position]) -> None:
        """Sets a consumer group's checkpoints; creates the group if there is none."""
        self._thread.call(self._note(group, positions))

    async def _note(self, group: str, positions: Mapping[int, Position]) -> None:
        known = self._groups.get(group)
        if known is None:
            access = self._access
            known = ReaderCheckpoints(self._gateways, access.project, access.logstore, group)
            await known.load()
            self._groups[group] = known
        await known.commit(positions)

    # Batches

    def begin_pull(self, shard: int, start: Position, *, bytes_max: int) -> "Future[Pulled]":
        """Begins to pull the batches of a shard from a position on."""
        return self._thread.begin(self._pull(shard, start, bytes_max, heads_only=False))

    def heads(self, shard: int, start: Position) -> Pulled:
        """Pulls only the heads of batches."""
        return self._thread.call(self._pull(shard, start, HEADS_BYTES_MAX, heads_only=True))

    async def _pull(
        self, shard: int, start: Position, bytes_max: int, *, heads_only: bool
    ) -> Pulled:
        access = self._access
        request = PullRequest(
            access.project,
            access.logstore,
            shard,
            position_to_bytes(start),
            PULL_BATCHES_MAX,
            bytes_max,
            heads_only=heads_only,
        )
        payload = await self._gateways.call(
            PULL,
            encode_pull(request),
            timeout_ms=access.timeout_ms,
            attempt_ms=_ATTEMPT_MS,
            turn=shard,
        )
        return decode_pulled(payload)

    async def put(self, request: list[Buffer], *, shard: int) -> Position:
        """Stores a batch; its producer and sequence make it safe to send twice."""
        payload = await self._gateways.call(
            PUT,
            request,
            timeout_ms=self._access.timeout_ms,
            attempt_ms=_ATTEMPT_MS,
            turn=shard,
        )
        return position_from_bytes(bytes(payload))


def _connect(access: StreamAccess) -> Hub:
    hub = Hub.connect(access)
    # After each task Spark's worker collects garbage, which takes tens of milliseconds for all
    # loaded modules: freezing excludes these.
    gc.collect()
    gc.freeze()
    return hub


_kept = ConnectionCache(_connect)
connected = _kept.get
"""Returns this process's connection to a logstore, a new one if there is none."""
disconnect = _kept.close
"""Closes this process's connections."""
