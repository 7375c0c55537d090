"""Registers as a replicated state machine that tells the witness all it does.

A command is "key=value", and every value is written once. An answer names the position that it is
true at: how many commands had been applied.
"""

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import msgspec

from raftwood.raft.state_machine import CommittedCommand, ExtraFiles, Stopped
from tests.kits.raft.hosts.witness import Witness


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot of the registers."""

    position: int
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

    def update(self, commands: Sequence[CommittedCommand]) -> list[bytes]:
        results = []
        for command in commands:
            self._witness.applied(self._who, self._group, self.position, command)
            self.position += 1
            key, _, value = command.payload.decode().partition("=")
            self.values[key] = value
            results.append(b"%d" % self.position)
        return results

    def lookup(self, query: bytes) -> bytes:
        return f"{self.position} {self.values.get(query.decode(), '')}".encode()

    def save_snapshot(self, files: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:  # noqa: ARG002
        padding = hashlib.shake_128(b"padding").digest(8 << 10)
        saved = msgspec.msgpack.encode(_Saved(self.position, dict(self.values), padding))
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
        self._witness.restored(self._who, self._group, saved.position, saved.values)
        self.position, self.values = saved.position, dict(saved.values)

    def close(self) -> None:
        pass
