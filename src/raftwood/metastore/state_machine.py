"""`MetaStateMachine`: the metastore that a raft group replicates, over `MetastoreState`.

Replicas read no clock. `Advance` commands, which the leader's store proposes (`LeaseTicker`),
advance their time. Each names the time that it counts from, so of two that count the same stretch
only one takes effect. The group's time never runs faster than real time and stands still without a
leader. One step is bounded. A lease may be granted just before a step, so the client that grants it
adds the bound to the lease's time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from raftwood.base.errors import InvalidInput, OutOfRange
from raftwood.base.versions import StateFormat
from raftwood.metastore import queries
from raftwood.metastore.commands import Command as MetaCommand
from raftwood.metastore.commands import ExpireLeases, MetastoreDone, encode, failed
from raftwood.metastore.rules import MetastoreState
from raftwood.raft.state_machine import CommittedCommand, ExtraFiles, Stopped, gathered, in_chunks

STEP_MS_MAX = 500
"""The most that one `Advance` counts."""
_FORMAT = StateFormat(b"RWMS", 1, "the metastore")


class Carry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A command of `metastore.commands`, encoded."""

    command: bytes


class Advance(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """Advances the clock. Ignored if the clock has moved since the proposer read it."""

    before_ms: int
    now_ms: int


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Carry | Advance] = msgspec.msgpack.Decoder(Carry | Advance)
_TICK = encode(ExpireLeases())
_DONE = encode(MetastoreDone())


def encode_command(command: MetaCommand) -> bytes:
    """Encodes a command for the group; `commands.decode_result` decodes the result."""
    return _encoder.encode(Carry(encode(command)))


def encode_advance(*, before_ms: int, now_ms: int) -> bytes:
    return _encoder.encode(Advance(before_ms, now_ms))


class MetaStateMachine:
    """Replicated metastore; commands, queries, results and answers are bytes."""

    def __init__(self) -> None:
        self._state = MetastoreState()
        self._changed = asyncio.Event()
        """Set and replaced at each change."""
        self._is_closed = False

    @property
    def now_ms(self) -> int:
        """The group's time."""
        return self._state.now_ms

    @property
    def leases(self) -> int:
        return self._state.status().leases

    def update(self, commands: Sequence[CommittedCommand]) -> list[bytes]:
        before = self._state.version
        results = [self._apply(command.payload) for command in commands]
        if self._state.version != before:
            self._wake()
        return results

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _apply(self, payload: bytes) -> bytes:
        state = self._state
        try:
            command = _decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return encode(failed(InvalidInput(f"not a command of the metastore: {error}")))
        if isinstance(command, Carry):
            return state.apply(command.command, state.now_ms)
        elapsed_ms = command.now_ms - command.before_ms
        if command.before_ms == state.now_ms and 0 < elapsed_ms <= STEP_MS_MAX:
            return state.apply(_TICK, command.now_ms)
        return _DONE

    def lookup(self, query: bytes) -> bytes:
        return queries.answer(self._state, query)

    def save_snapshot(self, files: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:  # noqa: ARG002
        return in_chunks(_FORMAT.encode(self._state.snapshot()), stopped)

    async def recover_from_snapshot(
        self,
        chunks: AsyncIterator[bytes],
        files: Mapping[str, str],  # noqa: ARG002
        stopped: Stopped,
    ) -> None:
        data = await gathered(chunks, stopped)
        if data is None:
            return
        self._state = _FORMAT.decode(data, MetastoreState.restored)
        self._wake()

    async def wait(self, query: bytes, timeout_ms: int) -> bool:
        """Waits until a query for changes has an answer, for `timeout_ms` at the most. Returns
        whether it had to wait.
        """
        asked = queries.decode_changes(query)
        if asked is None or self._has_changes(asked.prefix, asked.after_version):
            return False
        seen = asked.after_version
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while not self._is_closed and not self._has_changes(asked.prefix, seen):
                    seen = self._state.version
                    await self._changed.wait()
        return True

    def _has_changes(self, prefix: str, after_version: int) -> bool:
        try:
            return bool(self._state.changes(prefix, after_version=after_version))
        except OutOfRange:
            return True  # the error is an answer as well

    def close(self) -> None:
        """Wakes all waiting queries."""
        self._is_closed = True
        self._wake()


TICK_MS = 250
"""Interval of proposals, below the longest step, so that time does not lag behind."""


class LeaseTicker:
    """Decides when to propose `Advance`. One per replica; the leading store asks it several times
    in each `TICK_MS`.

    It counts from when it saw the group's time change, which is after the change. So the group's
    time never runs ahead, even if two stores believe that they lead.
    """

    def __init__(self, machine: MetaStateMachine) -> None:
        self._machine = machine
        self._group_ms = -1
        self._seen_ms = 0
        self._proposed_ms = 0

    def due(self, now_ms: int) -> bytes | None:
        """Returns the command to propose now, if any; `now_ms` is this store's monotonic time."""
        group_ms = self._machine.now_ms
        if group_ms != self._group_ms:
            self._group_ms = group_ms
            self._seen_ms = self._proposed_ms = now_ms
        if not self._machine.leases or now_ms - self._proposed_ms < TICK_MS:
            return None
        self._proposed_ms = now_ms
        step_ms = min(now_ms - self._seen_ms, STEP_MS_MAX)
        return encode_advance(before_ms=group_ms, now_ms=group_ms + step_ms)
