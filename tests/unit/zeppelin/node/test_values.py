"""Keys and values stand in the engine so that they come back, and tags are neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.base.errors import StoreDamaged
from raftwood.zeppelin.node.engine import (
    DATA_END,
    DATA_START,
    decode_value,
    encode_value,
    engine_key,
    engine_keys,
    key_of,
    range_of_tag,
)
from raftwood.zeppelin.records import Value
from raftwood.zeppelin.slots import tag_of

PIECES = st.sampled_from(
    [b"{", b"}", b"\x00", b"\x01", b"\xff", b"\x00\x01", b"\x00\xff", b"a", b"b", b"\x02"]
)
KEYS = st.lists(PIECES, max_size=8).map(b"".join)


@given(key=KEYS | st.binary(max_size=40))
def test_a_key_comes_back(key: bytes) -> None:
    stored = engine_key(key)
    assert DATA_START <= stored < DATA_END
    assert key_of(stored) == key


@given(keys=st.lists(KEYS, max_size=12))
def test_many_keys_stand_where_each_would(keys: list[bytes]) -> None:
    assert engine_keys(keys) == [engine_key(key) for key in keys]


@given(keys=st.lists(KEYS, min_size=2, max_size=12), tag=KEYS.filter(bool))
def test_a_tags_range_holds_its_keys_and_no_others(keys: list[bytes], tag: bytes) -> None:
    start, end = range_of_tag(tag)
    for key in (*keys, b"{" + tag + b"}x"):
        assert (start <= engine_key(key) < end) == (tag_of(key) == tag)


@given(data=st.binary(max_size=40), expires_ms=st.integers(0, 2**63))
def test_a_value_comes_back(data: bytes, expires_ms: int) -> None:
    assert decode_value(encode_value(data, expires_ms)) == Value(data, expires_ms)


def test_values_stand_as_they_always_did() -> None:
    assert encode_value(b"data", 0).hex() == "0064617461"
    assert encode_value(b"data", 1_700_000_000_000).hex() == "010068e5cf8b01000064617461"
    assert engine_key(b"plain").hex() == "10706c61696e"
    assert engine_key(b"{a\x00b}c").hex() == "116100ff6200017b6100627d63"


@pytest.mark.parametrize("stored", [b"", b"\x02data", b"\x01short"])
def test_a_value_that_is_none_is_damage(stored: bytes) -> None:
    with pytest.raises(StoreDamaged, match="restore the partition"):
        decode_value(stored)


@pytest.mark.parametrize("stored", [b"", b"\x05x", b"\x11tag"])
def test_a_key_that_is_none_is_damage(stored: bytes) -> None:
    with pytest.raises(StoreDamaged, match="no key of a partition"):
        key_of(stored)
