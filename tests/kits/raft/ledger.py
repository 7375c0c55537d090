"""The state machine of these tests: it keeps every command, so that lost and doubled ones show."""

import struct
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from raftwood.raft.state_machine import CommittedCommand, ExtraFiles, Stopped

_HEAD = struct.Struct("<IQ")
_COUNT = struct.Struct("<Q")
EVERYTHING = b"everything"


class Contents(msgspec.Struct, frozen=True):
    """All that a ledger knows: equal on all replicas that have applied the same commands."""

    numbers: dict[int, list[int]]
    """By writer, in the order of the log."""
    digest: int
    """Over all commands, each with the digest before it."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Contents).decode


def command(writer: int, number: int, size: int) -> bytes:
    return _HEAD.pack(writer, number).ljust(size, b".")


def count_query(writer: int) -> bytes:
    return _COUNT.pack(writer)


def count_from(answer: bytes) -> int:
    return int(_COUNT.unpack(answer)[0])


def contents_from(answer: bytes) -> Contents:
    return _decode(answer)


class Ledger:
    """Commands are a writer and its number; the answer is how many this writer has."""

    def __init__(self) -> None:
        self._numbers: dict[int, array[int]] = {}
        self._digest = 0

    def update(self, commands: Sequence[CommittedCommand]) -> Sequence[bytes]:
        results = []
        for each in commands:
            writer, number = _HEAD.unpack_from(each.payload)
            numbers = self._numbers.setdefault(writer, array("Q"))
            numbers.append(number)
            self._digest = xxh3_64_intdigest(each.payload, self._digest)
            results.append(_COUNT.pack(len(numbers)))
        return results

    def lookup(self, query: bytes) -> bytes:
        if query == EVERYTHING:
            return self._encoded()
        return _COUNT.pack(len(self._numbers.get(count_from(query), ())))

    def save_snapshot(self, _: ExtraFiles, __: Stopped) -> Iterator[bytes]:
        yield self._encoded()

    async def recover_from_snapshot(
        self, chunks: AsyncIterator[bytes], _: Mapping[str, str], __: Stopped
    ) -> None:
        contents = _decode(b"".join([chunk async for chunk in chunks]))
        self._numbers = {writer: array("Q", each) for writer, each in contents.numbers.items()}
        self._digest = contents.digest

    def _encoded(self) -> bytes:
        numbers = {writer: each.tolist() for writer, each in self._numbers.items()}
        return _encode(Contents(numbers, self._digest))

    def close(self) -> None: ...
