"""The common form of all ways in: sections of encoded records, packed into LogGroups and put.

All records of a request for one logstore become one LogGroup, which is put whole or not at all;
above the size limit they become several. Tags that all records share are the LogGroup's tags. Tags
in which they differ are contents of each record, under the name by which SLS's readers show a tag:
`__tag__:NAME`.

The messages are written by hand, in the form of `loghub/log_groups.py`: a record is encoded before
its shared tags are known, and bytes appended to an encoded message belong to it. `SectionWriter`
puts them into a logstore.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.compression import Codec, compress
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.base.log_group_codec import RECORD_TAG, ContentTable, encode_shared, time_field
from raftwood.base.protobuf_bytes import varint
from raftwood.loghub.batches import HEAD_BYTES, Batch
from raftwood.loghub.decode_bounds import RECORDS_MAX, SLICE_BYTES
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.streams import PutResult
from raftwood.net.listeners import FairScheduler

Contents = Iterable[tuple[bytes, bytes]]

COMPRESS_BYTES_MIN: Final = 1 << 10
SLICE_RECORDS: Final = 256
PACKED_BYTES_MAX: Final = 64 << 20
"""Limit of one request: records include the tags that they do not share."""
_content_heads: Final = ContentTable[bytes](bytes)


def _encode_contents(contents: Contents) -> bytes:
    parts: list[bytes] = []
    for key, value in contents:
        parts += (_content_heads[key][len(value)], value)
    return b"".join(parts)


def encode_record(time_ns: int, contents: Contents) -> bytes:
    """Encodes a `Log`; its time must come from `json_records.sensible`."""
    return time_field(time_ns) + _encode_contents(contents)


class RecordSection(msgspec.Struct, frozen=True):
    """Records that have the same tags."""

    tags: Mapping[bytes, bytes]
    records: list[bytes]


PAUSE: Final = RecordSection({}, [])
"""A decoder yields this after it has worked for a while without a record."""

T = TypeVar("T")


def sliced(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Cuts items into parts of limited number and size, so that decoders can pause between them."""
    part: list[T] = []
    size = 0
    for item in items:
        part.append(item)
        size += size_of(item)
        if len(part) >= SLICE_RECORDS or size >= SLICE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


class PackedLogGroup(msgspec.Struct, frozen=True, gc=False):
    """An encoded `LogGroup` and the number of its records."""

    body: bytes
    records: int

    def batch(self) -> Batch:
        """Returns a batch, compressed if that makes it smaller."""
        raw_bytes = len(self.body)
        if raw_bytes >= COMPRESS_BYTES_MIN:
            body = compress(self.body, Codec.LZ4)
            if len(body) < raw_bytes:
                return Batch(body=body, codec=Codec.LZ4, raw_bytes=raw_bytes, records=self.records)
        return Batch(body=self.body, raw_bytes=raw_bytes, records=self.records)


def _shared(sections: Sequence[RecordSection]) -> dict[bytes, bytes]:
    first, *others = (section.tags for section in sections)
    return {
        key: value for key, value in first.items() if all(tags.get(key) == value for tags in others)
    }


def pack(
    sections: Sequence[RecordSection], *, source: bytes = b"", bytes_max: int
) -> Iterator[PackedLogGroup | None]:
    """Packs sections into LogGroups of at most `bytes_max` bytes, in order; `BatchTooLarge` if a
    record is larger.

    Yields None now and then, so that the loop can run.
    """
    sections = [section for section in sections if section.records]
    if not sections:
        return
    shared = _shared(sections)
    end = encode_shared(source=source, tags=shared.items())
    room = bytes_max - len(end)
    parts: list[bytes] = []
    size = count = number = total = 0
    for section in sections:
        own = _encode_contents(
            (b"__tag__:" + key, value) for key, value in section.tags.items() if key not in shared
        )
        for record in section.records:
            number += 1
            body = record + own
            length = varint(len(body))
            bytes_more = 1 + len(length) + len(body)
            if bytes_more > room:
                raise BatchTooLarge(
                    f"record {number} takes {bytes_more + len(end)} bytes, {bytes_max} are "
                    "allowed: send it in parts"
                )
            if size + bytes_more > room:
                yield PackedLogGroup(b"".join((*parts, end)), count)
                parts, size, count = [], 0, 0
            parts += (RECORD_TAG, length, body)
            size += bytes_more
            count += 1
            total += bytes_more
            if total > PACKED_BYTES_MAX:
                raise BatchTooLarge(
                    f"the records take more than {PACKED_BYTES_MAX} bytes with their tags: send "
                    "fewer at once, or tags that all of them share"
                )
            if not number % SLICE_RECORDS:
                yield None
    yield PackedLogGroup(b"".join((*parts, end)), count)


def take_out_too_large(sections: Sequence[RecordSection], *, bytes_max: int) -> int:
    """Removes the records that fit no LogGroup; returns how many."""
    refused = 0
    for section in sections:
        room = bytes_max - sum(len(key) + len(value) + 32 for key, value in section.tags.items())
        kept = [record for record in section.records if len(record) <= room - 512]
        refused += len(section.records) - len(kept)
        section.records[:] = kept
    return refused


_PAUSE: Final = Backoff(first_ms=50, longest_ms=2_000)


async def gathered(
    decoded: Iterable[T], turns: FairScheduler, *, records_max: int = RECORDS_MAX
) -> list[T]:
    """Collects all that a decoder yields, section by section, and lets other requests run in
    between.

    `BatchTooLarge` for more than `records_max`: records of a few bytes take many times that here. A
    section without records is a pause.
    """
    found: list[T] = []
    records = since_turn = 0
    for each in decoded:
        count, cost = 1, 1
        if isinstance(each, RecordSection):
            count = len(each.records)
            size = sum(map(len, each.records))
            cost = max(count, SLICE_RECORDS * size // SLICE_BYTES) if count else SLICE_RECORDS
        if count:
            found.append(each)
        records += count
        since_turn += cost
        if records > records_max:
            raise BatchTooLarge(
                f"a request has more than {records_max} records: send them in several requests"
            )
        if since_turn >= SLICE_RECORDS:
            since_turn = 0
            await turns.pause()
    return found


class LogstoreName(msgspec.Struct, frozen=True):
    """A logstore."""

    project: str
    logstore: str


class SectionWriter:
    """Puts sections into logstores; the caller has checked the rights."""

    def __init__(self, environment: Environment, gateway: Gateway) -> None:
        self._environment = environment
        self._gateway = gateway

    @property
    def turns(self) -> FairScheduler:
        """The scheduler for `gathered`."""
        return self._gateway.decoding

    @property
    def group_bytes_max(self) -> int:
        limits = self._gateway.streams.limits
        return min(limits.stored_bytes_max - HEAD_BYTES, limits.raw_bytes_max)

    def now_ns(self) -> int:
        """Returns the receipt time of data that arrives now."""
        return self._environment.clock.wall_ns()

    async def put(
        self,
        place: LogstoreName,
        sections: Sequence[RecordSection],
        *,
        source: bytes,
        key: str | None,
    ) -> list[PutResult]:
        """Puts sections; they are durable on return. All is packed before the first LogGroup is
        put. If there are several and one fails, those before it are stored.
        """
        results = []
        for packed in await self._packed(sections, source):
            self._gateway.quotas.take(place.project, len(packed.body))
            results.append(
                await self._gateway.streams.put(
                    place.project, place.logstore, packed.batch(), key=key
                )
            )
        return results

    async def _packed(
        self, sections: Sequence[RecordSection], source: bytes
    ) -> list[PackedLogGroup]:
        found = []
        for each in pack(sections, source=source, bytes_max=self.group_bytes_max):
            if each is None:
                await self.turns.pause()
            else:
                found.append(each)
        return found

    async def put_patiently(
        self,
        place: LogstoreName,
        sections: Sequence[RecordSection],
        *,
        source: bytes,
        key: str,
        patience_ms: int,
    ) -> int:
        """Puts for senders that get no errors: retries temporary errors for `patience_ms`.

        Returns how many records were dropped because they fit no LogGroup.
        """
        dropped = take_out_too_large(sections, bytes_max=self.group_bytes_max)
        clock = self._environment.clock
        deadline_ns = clock.monotonic_ns() + patience_ms * 1_000_000
        pauses = _PAUSE.delays_s(self._environment.random)
        for packed in await self._packed(sections, source):
            while True:
                try:
                    self._gateway.quotas.take(place.project, len(packed.body))
                    await self._gateway.streams.put(
                        place.project, place.logstore, packed.batch(), key=key
                    )
                    break
                except RaftwoodError as error:
                    if not error.retriable or clock.monotonic_ns() >= deadline_ns:
                        raise
                await asyncio.sleep(next(pauses))
        return dropped
