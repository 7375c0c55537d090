"""Stored bytes of a newer format are refused, damaged ones are named, others are read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.base.errors import InvalidInput, StoreDamaged, UnsupportedVersion
from raftwood.base.versions import StateFormat, decode_versioned

FORMAT = StateFormat(b"TEST", 3, "a test")


class Kept(msgspec.Struct, array_like=True):
    version: int
    name: str
    later: int = 0
    """Version 1 had no such field."""


def kept(data: bytes) -> Kept:
    return decode_versioned(data, Kept, version=2, name="the record", remedy="remove it")


def test_a_record_of_this_version_or_an_older_one_is_read() -> None:
    assert kept(msgspec.msgpack.encode(Kept(2, "a", 5))) == Kept(2, "a", 5)
    assert kept(msgspec.msgpack.encode([1, "a"])) == Kept(1, "a", 0)


@pytest.mark.parametrize("version", [0, 3, 99])
def test_a_record_of_a_newer_version_is_refused_whatever_follows(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"the record has format {version}, .* up to 2"):
        kept(msgspec.msgpack.encode([version, {"of": "another kind"}]))


@given(st.binary(max_size=50))
def test_other_bytes_are_no_record(data: bytes) -> None:
    try:
        kept(data)
    except UnsupportedVersion:
        assert data[0] & 0xF0 == 0x90 or data[0] in (0xDC, 0xDD)  # an array
    except StoreDamaged as error:
        assert error.message.startswith("the record cannot be read")
        assert error.message.endswith(": remove it")


@given(st.binary(max_size=20))
def test_a_state_is_read_back(body: bytes) -> None:
    data = FORMAT.encode(body)
    assert data == b"TEST\x03" + body
    assert FORMAT.decode(data, bytes) == body
    assert FORMAT.decode(b"TEST\x01" + body, bytes) == body
    for version in (0, 4):
        with pytest.raises(UnsupportedVersion, match=f"snapshot of a test has format {version}"):
            FORMAT.decode(b"TEST" + bytes((version,)) + body, bytes)


@pytest.mark.parametrize("data", [b"", b"TEST", b"TESS\x03body", b"\x03"])
def test_what_begins_otherwise_is_no_state(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match="remove this replica"):
        FORMAT.decode(data, bytes)


@pytest.mark.parametrize("error", [ValueError("x"), InvalidInput("x"), msgspec.DecodeError("x")])
def test_a_body_that_cannot_be_decoded_is_damage(error: Exception) -> None:
    def fail(_body: bytes) -> None:
        raise error

    with pytest.raises(StoreDamaged, match=r"a snapshot of a test cannot be read \(x\)"):
        FORMAT.decode(FORMAT.encode(b"body"), fail)
