"""Bulk requests: many keys, to all nodes in parallel, some thousand in a request.

Rows are cut into chunks before the client knows which node has them, and a chunk has one name.
However the nodes share a chunk's rows when it is sent again, a partition gets the same rows, in one
request. So the client sends rows by the map of whole partitions, not by moves of single slots.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from raftwood.base.errors import TooLarge
from raftwood.zeppelin.client.connection import NodeConnection
from raftwood.zeppelin.client.requester import Attempts, Requester, named
from raftwood.zeppelin.records import KeyWrite
from raftwood.zeppelin.resp import ErrorAnswer, request
from raftwood.zeppelin.slots import slot_of

CHUNK_ROWS_MAX: Final = 2_000
CHUNK_BYTES_MAX: Final = 1 << 20
GIVEN_BYTES_MAX: Final = 16 << 20
"""Size of a chunk that the caller has cut."""
PIECES_MAX: Final = 64
"""Pieces under way at a time."""
NO_END: Final = b"$1\r\n0\r\n"

Verb: TypeAlias = Literal[b"GET", b"SET", b"INCR", b"DEL", b"APPLY"]


class NamedRows(NamedTuple):
    """Rows that are written once under a name, however often clients send them.

    The rows of a name in one partition must be the same each time.
    """

    producer: str
    number: int
    keys: Sequence[bytes]
    values: Sequence[bytes]
    """Values, or amounts."""
    ends: Sequence[bytes] = ()


class _Piece:
    """Rows of one chunk that one node gets."""

    __slots__ = ("chunk", "rows", "seen")

    def __init__(self, chunk: "_Chunk", rows: Sequence[int] | None, seen: int) -> None:
        self.chunk = chunk
        self.rows = rows
        """Indexes of the rows in the chunk; None: all."""
        self.seen = seen

    @property
    def places(self) -> Sequence[int]:
        return range(len(self.chunk.keys)) if self.rows is None else self.rows


class _Chunk:
    """Rows under one name."""

    __slots__ = ("answers", "ends", "keys", "name", "reads_replicas", "values", "verb")

    def __init__(
        self,
        verb: Verb,
        keys: Sequence[bytes],
        values: Sequence[bytes] = (),
        ends: Sequence[bytes] = (),
        *,
        name: bytes = b"",
    ) -> None:
        self.verb = verb
        self.keys = keys
        self.values = values
        self.ends = ends
        """Encoded: each row's time to live in milliseconds."""
        self.name = name
        """Encoded: the name that identifies a repetition; empty if it only reads."""
        self.reads_replicas = not name
        self.answers: list[Any] = [None] * len(keys) if verb == b"GET" else []

    def encoded(self, places: Sequence[int] | None) -> bytes:
        keys, values, ends = self.keys, self.values, self.ends
        if places is not None:
            keys = [keys[place] for place in places]
            values = [values[place] for place in places] if values else ()
            ends = [ends[place] for place in places] if ends else ()
        if values:
            words = 2 + 3 * len(keys)
            body = b"".join(
                [
                    b"$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (len(key), key, len(value), value, end)
                    for key, value, end in zip(keys, values, ends or repeat(NO_END), strict=False)
                ]
            )
        else:
            words = 2 + len(keys)
            body = b"".join([b"$%d\r\n%b\r\n" % (len(key), key) for key in keys])
        verb = self.verb
        return b"%b*%d\r\n$4\r\nBULK\r\n$%d\r\n%b\r\n%b" % (
            self.name,
            words,
            len(verb),
            verb,
            body,
        )

    def take(self, piece: _Piece, answer: Any) -> None:
        if self.verb != b"GET":
            self.answers.append(answer)
        elif piece.rows is None:
            self.answers = answer
        else:
            for place, value in zip(piece.rows, answer, strict=True):
                self.answers[place] = value


class _Applied(_Chunk):
    """Changes under a producer's number: partitions refuse smaller numbers afterwards."""

    __slots__ = ("head", "writes")

    def __init__(self, producer: bytes, number: int, writes: Sequence[KeyWrite]) -> None:
        super().__init__(b"APPLY", [write.key for write in writes])
        self.head = [b"BULK", b"APPLY", producer, b"%d" % number]
        self.writes = writes
        self.reads_replicas = False

    def encoded(self, places: Sequence[int] | None) -> bytes:
        words = [*self.head]
        for place in range(len(self.writes)) if places is None else places:
            write = self.writes[place]
            verb = b"DEL" if write.data is None else b"SET"
            words += [write.key, verb, write.data or b"", b"%d" % write.expires_ms]
        return request(words)


class BulkRequests:
    """Sends chunks; one coroutine for each batch."""

    def __init__(self, calls: Requester) -> None:
        self._calls = calls
        self._turn = 0

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        chunks = [_Chunk(b"GET", part) for part, _, _ in _cut(keys)]
        await self._run(chunks)
        return [value for chunk in chunks for value in chunk.answers]

    async def set(
        self, keys: Sequence[bytes], values: Sequence[bytes], ends: Sequence[bytes] = ()
    ) -> None:
        await self._write(b"SET", keys, values, ends)

    async def increment(
        self, keys: Sequence[bytes], amounts: Sequence[bytes], ends: Sequence[bytes] = ()
    ) -> None:
        await self._write(b"INCR", keys, amounts, ends)

    async def write_named(self, verb: Literal[b"SET", b"INCR"], rows: Iterable[NamedRows]) -> None:
        """Sends chunks as the caller cut them, each under its own name."""
        await self._run(_given(verb, each) for each in rows)

    async def apply(self, producer: bytes, number: int, writes: Sequence[KeyWrite]) -> None:
        await self._run([_Applied(producer, number, writes)])

    async def delete(self, keys: Sequence[bytes]) -> int:
        chunks = [_Chunk(b"DEL", part, name=self._calls.name()) for part, _, _ in _cut(keys)]
        await self._run(chunks)
        return sum(count for chunk in chunks for count in chunk.answers)

    async def _write(
        self,
        verb: Verb,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        ends: Sequence[bytes],
    ) -> None:
        name = self._calls.name
        await self._run(_Chunk(verb, *part, name=name()) for part in _cut(keys, values, ends))

    async def _run(self, chunks: Iterable[_Chunk]) -> None:
        """Sends all chunks, some at a time; failed pieces go again to their present nodes."""
        self._turn += 1
        asked: deque[tuple[_Piece, asyncio.Future[Any]]] = deque()
        failed: list[tuple[_Piece, ErrorAnswer]] = []
        for chunk in chunks:
            await self._ask(_Piece(chunk, None, 0), asked, failed)
            while len(asked) > PIECES_MAX:
                await self._hear(*asked.popleft(), failed)
            if failed:
                await self._again(asked, failed)
        await self._again(asked, failed)

    async def _again(
        self,
        asked: "deque[tuple[_Piece, asyncio.Future[Any]]]",
        failed: list[tuple[_Piece, ErrorAnswer]],
    ) -> None:
        """Waits for all pieces, and sends those that failed again until none does."""
        attempts: Attempts | None = None
        while asked or failed:
            while asked:
                await self._hear(*asked.popleft(), failed)
            if not failed:
                return
            attempts = attempts or self._calls.attempts()
            pieces, failed[:] = list(failed), []
            pieces, parts = _halved(pieces)
            # Equal refusals need only one look for the nodes.
            for piece, answer in _distinct(pieces):
                await attempts.after(answer, self._calls.nodes, piece.seen, is_of_many=True)
            for piece in (*parts, *(piece for piece, _ in pieces)):
                piece.chunk.reads_replicas = False
                await self._ask(piece, asked, failed)

    async def _ask(
        self,
        piece: _Piece,
        asked: "deque[tuple[_Piece, asyncio.Future[Any]]]",
        failed: list[tuple[_Piece, ErrorAnswer]],
    ) -> None:
        chunk, nodes = piece.chunk, self._calls.nodes
        for address, rows in self._by_node(piece):
            part = _Piece(chunk, rows, nodes.looks)
            found: Any = nodes.link(address)
            if found is None or found.is_full:
                found = await self._calls.reach(address)
            if isinstance(found, NodeConnection):
                encoded = chunk.encoded(rows)
                asked.append((part, found.ask(encoded, before=1 if chunk.name else 0)))
            else:
                failed.append((part, found))

    def _by_node(self, piece: _Piece) -> Iterable[tuple[str | None, Sequence[int] | None]]:
        nodes, keys = self._calls.nodes, piece.chunk.keys
        reads = piece.chunk.reads_replicas
        if nodes.map.only is not None and not reads:
            return [(nodes.map.only, piece.rows)]
        rows: dict[str | None, list[int]] = {}
        for place in piece.places:
            slot = slot_of(keys[place])
            address = (
                nodes.place(slot, reads=True, turn=self._turn) if reads else nodes.map.told[slot]
            )
            rows.setdefault(address, []).append(place)
        return rows.items()

    @staticmethod
    async def _hear(
        piece: _Piece, answered: "asyncio.Future[Any]", failed: list[tuple[_Piece, ErrorAnswer]]
    ) -> None:
        answer = await answered
        if isinstance(answer, ErrorAnswer):
            failed.append((piece, answer))
        else:
            piece.chunk.take(piece, answer)


def _given(verb: Verb, rows: NamedRows) -> _Chunk:
    size = sum(map(len, rows.keys)) + sum(map(len, rows.values))
    if size > GIVEN_BYTES_MAX:
        raise TooLarge(
            f"{len(rows.keys)} rows of one name have {size} bytes, and {GIVEN_BYTES_MAX} is the "
            "most: give fewer rows at a time"
        )
    name = named(rows.producer, rows.number)
    return _Chunk(verb, rows.keys, rows.values, rows.ends, name=name)


def _halved(
    failed: list[tuple[_Piece, ErrorAnswer]],
) -> tuple[list[tuple[_Piece, ErrorAnswer]], list[_Piece]]:
    """Halves pieces whose values were too much for one answer; returns the others and the
    halves.
    """
    others: list[tuple[_Piece, ErrorAnswer]] = []
    halves: list[_Piece] = []
    for piece, answer in failed:
        places = piece.places
        if answer.kind == "TOOLARGE" and len(places) > 1:
            middle = len(places) // 2
            halves += [
                _Piece(piece.chunk, part, piece.seen) for part in (places[:middle], places[middle:])
            ]
        else:
            others.append((piece, answer))
    return others, halves


def _distinct(pieces: list[tuple[_Piece, ErrorAnswer]]) -> Iterable[tuple[_Piece, ErrorAnswer]]:
    """Returns one of each group of pieces that failed with the same words."""
    return {answer: (piece, answer) for piece, answer in pieces}.values()


def _cut(
    keys: Sequence[bytes], values: Sequence[bytes] = (), ends: Sequence[bytes] = ()
) -> Iterator[tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]]:
    """Cuts rows into chunks; the cuts depend on the rows alone."""
    count, begin = len(keys), 0
    while begin < count:
        end = min(begin + CHUNK_ROWS_MAX, count)
        if values:
            size = 0
            for place in range(begin, end):
                size += len(keys[place]) + len(values[place])
                if size > CHUNK_BYTES_MAX:
                    end = max(place, begin + 1)
                    break
        yield keys[begin:end], values[begin:end], ends[begin:end]
        begin = end
