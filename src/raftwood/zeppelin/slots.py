"""Maps keys to slots as Redis Cluster does, and slots to places of a table."""

from binascii import crc_hqx
from collections.abc import Sequence
from itertools import repeat
from typing import Final

SLOTS: Final = 16_384
PARTITIONS_MAX: Final = 4_096


def tag_of(key: bytes) -> bytes | None:
    """Returns the text between the first `{` and the next `}`; None if that is empty.

    Keys with the same tag are in the same slot.
    """
    begin = key.find(b"{")
    if begin < 0:
        return None
    end = key.find(b"}", begin + 1)
    return key[begin + 1 : end] if end > begin + 1 else None


def slot_of(key: bytes) -> int:
    """Returns the slot of a key, by its tag if it has one."""
    if b"{" in key:
        key = tag_of(key) or key
    return crc_hqx(key, 0) & (SLOTS - 1)


def are_in_slot(keys: Sequence[bytes], slot: int) -> bool:
    """Whether all keys are in `slot`, which is that of the first key."""
    first = keys[0]
    begin = first.find(b"{")
    end = first.find(b"}", begin + 1)
    # Keys that begin with the same tag share a slot; comparing tags is faster than computing
    # slots.
    if 0 <= begin < end - 1 and all(map(bytes.startswith, keys, repeat(first[: end + 1]))):
        return True
    return all(slot_of(key) == slot for key in keys)


def place_of_slot(slot: int, places: int) -> int:
    """Returns the place of a slot; each place has a contiguous range of slots."""
    return slot * places // SLOTS


def slots_of_place(place: int, places: int) -> range:
    """Returns the slots that `place_of_slot` maps to a place."""
    first = -(-place * SLOTS // places)
    return range(first, -(-(place + 1) * SLOTS // places))
