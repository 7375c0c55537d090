"""`Putting`: sections that a way in decoded, into a logstore."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.loghub.batches import HEAD_BYTES
from raftwood.loghub.decode_bounds import RECORDS_MAX, SLICE_BYTES
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.streams import PutResult
from raftwood.loghub.server.ways_in.records import (
    SLICE_RECORDS,
    Packed,
    Section,
    pack,
    take_out_too_large,
)
from raftwood.net.turns import Turns

_PAUSE_S_FIRST: Final = 0.05
_PAUSE_S_MAX: Final = 2.0
T = TypeVar("T")


async def gathered(
    decoded: Iterable[T], turns: Turns, *, records_max: int = RECORDS_MAX
) -> list[T]:
    """All that a decoder gives, section by section: a large request leaves others their turns.

    `BatchTooLarge` for more than `records_max`: records of a few bytes take many times that here.
    At a section without records others have their turn at once.
    """
    found: list[T] = []
    records = since_turn = 0
    for each in decoded:
        count, cost = 1, 1
        if isinstance(each, Section):
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


class Place(msgspec.Struct, frozen=True):
    """A logstore."""

    project: str
    logstore: str


class Putting:
    """Of a gateway; whether somebody may was asked before."""

    def __init__(self, environment: Environment, gateway: Gateway) -> None:
        self._environment = environment
        self._gateway = gateway

    @property
    def turns(self) -> Turns:
        """For `gathered`."""
        return self._gateway.decoding

    @property
    def group_bytes_max(self) -> int:
        limits = self._gateway.streams.limits
        return min(limits.stored_bytes_max - HEAD_BYTES, limits.raw_bytes_max)

    def now_ns(self) -> int:
        """When what comes now was received."""
        return self._environment.clock.wall_ns()

    async def put(
        self, place: Place, sections: Sequence[Section], *, source: bytes, key: str | None
    ) -> list[PutResult]:
        """Durable when it returns. All is packed before the first LogGroup is put; where it takes
        several, those before one that failed are stored.
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

    async def _packed(self, sections: Sequence[Section], source: bytes) -> list[Packed]:
        found = []
        for each in pack(sections, source=source, bytes_max=self.group_bytes_max):
            if each is None:
                await self.turns.pause()
            else:
                found.append(each)
        return found

    async def put_patiently(
        self,
        place: Place,
        sections: Sequence[Section],
        *,
        source: bytes,
        key: str,
        patience_ms: int,
    ) -> int:
        """For senders that are not told of errors: what may pass is waited for, for so long.

        Answers how many records were dropped because they fit no LogGroup.
        """
        dropped = take_out_too_large(sections, bytes_max=self.group_bytes_max)
        clock = self._environment.clock
        deadline_ns = clock.monotonic_ns() + patience_ms * 1_000_000
        pause_s = _PAUSE_S_FIRST
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
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return dropped
