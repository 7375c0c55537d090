"""Registers as a replicated state machine, and the witness that sees every replica apply.

A command is "key=value", and every value is written once. The witness keeps one sequence of commands
for each group: what the first replica applied, all others apply, in this order, none twice, none
left out.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import msgspec

from raftwood.raft.state_machine import Command, ExtraFiles, Stopped


class PromiseBroken(AssertionError):
    """Replicas did what no correct raft does."""


class Witness:
    """Outside of all stores: it forgets nothing and loses nothing."""

    def __init__(self) -> None:
        self.sequences: dict[int, list[tuple[int, bytes]]] = {}
        self._known: dict[int, dict[bytes, int]] = {}
        self.snapshots_restored = 0

    def applied(self, who: str, group: int, position: int, command: Command) -> None:
        """A replica applies a command after so many others."""
        index, payload = command.index, command.payload
        sequence = self.sequences.setdefault(group, [])
        if position < len(sequence):
            if sequence[position] != (index, payload):
                raise PromiseBroken(
                    f"{who} applies {payload!r} at {index} as command {position} of group {group}, "
                    f"where another replica applied {sequence[position]}"
                )
            return
        if sequence and index <= sequence[-1][0]:
            raise PromiseBroken(
                f"{who} applies {payload!r} at {index} of group {group}, which others left out: "
                f"they were at {sequence[-1]}"
            )
        known = self._known.setdefault(group, {})
        if known.setdefault(payload, index) != index:
            raise PromiseBroken(
                f"{who} applies {payload!r} at {index} of group {group} a second time: it was "
                f"applied at {known[payload]}"
            )
        sequence.append((index, payload))

    def acknowledged(self, group: int, payload: bytes, index: int) -> None:
        """A client was told that its command was applied."""
        if self._known.get(group, {}).get(payload) != index:
            raise PromiseBroken(f"{payload!r} was acknowledged at {index} and is in no replica")


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot of the registers."""

    position: int
    last_index: int
    values: dict[str, str]
    padding: bytes


class Registers:
    """The state machine of one replica."""

    def __init__(self, witness: Witness, who: str, group: int) -> None:
        self._witness = witness
        self._who = who
        self._group = group
        self.values: dict[str, str] = {}
        self.position = 0
        self._last_index = 0

    def update(self, commands: Sequence[Command]) -> list[bytes]:
        results = []
        for command in commands:
            if command.index <= self._last_index:
                raise PromiseBroken(f"{self._who}: {command.index} after {self._last_index}")
            self._witness.applied(self._who, self._group, self.position, command)
            self.position += 1
            self._last_index = command.index
            key, _, value = command.payload.decode().partition("=")
            self.values[key] = value
            results.append(b"%d" % command.index)
        return results

    def lookup(self, query: bytes) -> bytes:
        return self.values.get(query.decode(), "").encode()

    def save_snapshot(self, files: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:  # noqa: ARG002
        padding = hashlib.shake_128(b"padding").digest(8 << 10)
        saved = msgspec.msgpack.encode(
            _Saved(self.position, self._last_index, dict(self.values), padding)
        )
        for start in range(0, len(saved), 3000):
            yield saved[start : start + 3000]

    async def recover_from_snapshot(
        self,
        chunks: AsyncIterator[bytes],
        files: Mapping[str, str],  # noqa: ARG002
        stopped: Stopped,  # noqa: ARG002
    ) -> None:
        data = b"".join([chunk async for chunk in chunks])
        saved = msgspec.msgpack.decode(data, type=_Saved)
        self._witness.snapshots_restored += 1
        self.position, self._last_index = saved.position, saved.last_index
        self.values = dict(saved.values)

    def close(self) -> None:
        pass
