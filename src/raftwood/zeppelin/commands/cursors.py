"""SCAN's cursors: to clients a number, here a slot and a key."""

from typing import Final

import msgspec

from raftwood.zeppelin.commands.refusals import Refused

CURSORS_MAX: Final = 10_000


class Place(msgspec.Struct, frozen=True):
    """Behind a key of the partition that has a slot; those with lower slots are told.

    So it stays a place when partitions are split meanwhile.
    """

    table: str
    slot: int
    after: bytes | None = None


class Cursors:
    """The last ones that were given out; a scan that rests for long may have to begin anew."""

    def __init__(self, first: int) -> None:
        # Not from 1 on: after a restart no old cursor is to be taken for a new one.
        self._next = first
        self._places: dict[int, Place] = {}

    def add(self, place: Place) -> int:
        number = self._next
        self._next += 1
        self._places[number] = place
        if len(self._places) > CURSORS_MAX:
            del self._places[next(iter(self._places))]
        return number

    def find(self, number: int, *, table: str) -> Place:
        if number == 0:
            return Place(table, 0)
        place = self._places.get(number)
        if place is None or place.table != table:
            raise Refused("ERR invalid cursor: it is not known any more, begin at 0")
        return place
