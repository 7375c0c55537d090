"""Slots are as Redis Cluster counts them, and every slot is at one place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.zeppelin.slots import (
    SLOTS,
    are_in_slot,
    place_of_slot,
    slot_of,
    slots_of_place,
    tag_of,
)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"foo", 12182),
        (b"123456789", 12739),
        (b"{user1000}.following", 3443),
        (b"{user1000}.followers", 3443),
        (b"", 0),
    ],
)
def test_slots_are_those_of_redis(key: bytes, slot: int) -> None:
    assert slot_of(key) == slot


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        (b"plain", None),
        (b"a{b}c", b"b"),
        (b"{}x{y}", None),
        (b"{a}{b}", b"a"),
        (b"{{a}}", b"{a"),
        (b"open{", None),
        (b"}{a}", b"a"),
    ],
)
def test_a_tag_is_what_stands_in_the_first_braces(key: bytes, tag: bytes | None) -> None:
    assert tag_of(key) == tag
    assert slot_of(key) == slot_of(tag or key) or tag is None


PIECES = st.sampled_from([b"{", b"}", b"a", b"b", b"x{a}", b"{a}"])


@given(keys=st.lists(st.lists(PIECES, max_size=5).map(b"".join), min_size=1, max_size=5))
def test_keys_are_in_one_slot_if_each_is(keys: list[bytes]) -> None:
    slots = set(map(slot_of, keys))
    assert are_in_slot(keys, slot_of(keys[0])) == (len(slots) == 1)


@pytest.mark.parametrize("places", [1, 2, 3, 16, 1000, 4096])
def test_places_have_all_slots_each_once_in_order(places: int) -> None:
    ranges = [slots_of_place(each, places) for each in range(places)]
    assert [slot for each in ranges for slot in each] == list(range(SLOTS))
    for place, each in enumerate(ranges):
        assert {place_of_slot(slot, places) for slot in each} == {place}
