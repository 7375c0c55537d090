"""`LogStateMachine`: a log shard as a raft group replicates it, over `LogShardState`.

Questions and results are plain Python values: only the server in the same process asks. `wait_past`
lets readers at the end of the log sleep until an entry is applied.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.base.versions import StateFormat
from raftwood.logservice.log_rules import (
    Hole,
    LeaseChange,
    LogShardState,
    LsnMap,
    ShardProducer,
    ShardProducers,
    Span,
)
from raftwood.logservice.records import RestoreState, name_before, record_name
from raftwood.raft.state_machine import CommittedCommand, ExtraFiles, Stopped, gathered, in_chunks

_FORMAT: Final = StateFormat(b"RWLS", 3, "a log shard")
"""Version 1 had no restored shards; version 2 did not count appended bytes."""

Question = Callable[[LogShardState], Any]
"""A question to `lookup`: it reads the state and changes nothing."""


class _Stored(msgspec.Struct, array_like=True):
    applied: int
    holder: int
    truncated: int
    required: int
    tso: int
    leases: list[LeaseChange]
    holes: list[Hole]
    producers: list[tuple[bytes, ShardProducer]]
    has_records: bool = True
    spans: list[Span] = []
    restore: RestoreState | None = None
    offset: int = 0
    appended_bytes: int = 0


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Stored).decode


class LogStateMachine:
    """One replica's state machine; it holds no records."""

    def __init__(self) -> None:
        self.state = LogShardState()
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.is_closed = False

    def update(self, commands: Sequence[CommittedCommand]) -> Sequence[Any]:
        results = self.state.apply_all(commands)
        if self._waiting:
            self._wake()
        return results

    def lookup(self, query: Question) -> Any:
        return query(self.state)

    @property
    def freeable_index(self) -> int:
        """The records stay in the log until they are truncated: no snapshot has them."""
        return self.state.freeable_index

    def name_of(self, payload: bytes) -> bytes | None:
        return record_name(payload)

    def name_before(self, payload: bytes) -> bytes | None:
        return name_before(payload)

    def answer_to(self, name: bytes) -> int | RaftwoodError | None:
        return self.state.answer_to(name)

    async def wait_past(self, index: int, timeout_ms: int) -> None:
        """Waits until an entry above an index is applied here, or the time is over."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.state.applied <= index and not self.is_closed:
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiting[waiter] = None
                    try:
                        await waiter
                    finally:
                        self._waiting.pop(waiter, None)
        except TimeoutError:
            return

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def save_snapshot(self, files: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:  # noqa: ARG002
        return in_chunks(_FORMAT.encode(_encode(_stored(self.state))), stopped)

    async def recover_from_snapshot(
        self,
        chunks: AsyncIterator[bytes],
        files: Mapping[str, str],  # noqa: ARG002
        stopped: Stopped,
    ) -> None:
        data = await gathered(chunks, stopped)
        if data is None:
            return
        self.state = restored(data)
        self._wake()

    def close(self) -> None:
        self.is_closed = True
        self._wake()


def _stored(state: LogShardState) -> _Stored:
    return _Stored(
        state.applied,
        state.holder,
        state.truncated,
        state.required,
        state.tso,
        state.leases,
        state.holes,
        list(state.producers.items()),
        state.has_records,
        state.lsns.spans,
        state.restore,
        state.offset,
        state.appended_bytes,
    )


def restored(data: bytes) -> LogShardState:
    """Decodes a snapshot; `UnsupportedVersion` or `StoreDamaged` if it is none."""
    stored = _FORMAT.decode(data, _decode)
    state = LogShardState()
    state.applied = stored.applied
    state.holder = stored.holder
    state.truncated = stored.truncated
    state.required = stored.required
    state.tso = stored.tso
    state.leases = stored.leases
    state.holes = stored.holes
    state.producers = ShardProducers(dict(stored.producers))
    state.has_records = stored.has_records
    state.lsns = LsnMap(stored.spans)
    state.restore = stored.restore
    state.is_restoring = stored.restore is not None and not stored.restore.is_done
    state.offset = stored.offset
    state.appended_bytes = stored.appended_bytes
    return state
