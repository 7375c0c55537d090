"""Entries are packed byte for byte as BookKeeper does."""

import pytest

from raftwood.dlog.errors import BadDigest
from raftwood.dlog.ledgers.digests import EntryDigest, master_key
from raftwood.dlog.ledgers.metadata import Digest

HEAD = "0000000000000007000000000000000300000000000000020000000000000019"
GOLDEN = {
    Digest.CRC32C: "d4463405",
    Digest.CRC32: "000000009d0ebd79",
    Digest.MAC: "0465c58bb06543035459d4a07d48d1ce5511b356",
    Digest.DUMMY: "",
}
PUBLISHED = {
    Digest.CRC32C: "642b2407",
    Digest.CRC32: "0000000066d447b0",
    Digest.MAC: "4e844d32509abd4077c31e8a67632b419aeb6efd",
    Digest.DUMMY: "",
}


@pytest.mark.parametrize("kind", Digest)
def test_an_entry_is_packed_as_ever(kind: Digest) -> None:
    digest = EntryDigest(7, kind, b"secret")
    packed = b"".join(
        digest.pack(entry=3, last_confirmed=2, length_bytes=25, data=memoryview(b"hello"))
    )
    assert packed.hex() == HEAD + GOLDEN[kind] + b"hello".hex()
    assert digest.unpack(memoryview(packed), entry=3) == (3, 2, 25, b"hello")
    assert digest.unpack(packed) == (3, 2, 25, b"hello")


@pytest.mark.parametrize("kind", [kind for kind in Digest if kind is not Digest.DUMMY])
def test_every_changed_bit_is_seen(kind: Digest) -> None:
    digest = EntryDigest(7, kind, b"secret")
    packed = b"".join(digest.pack(entry=3, last_confirmed=2, length_bytes=25, data=b"hello"))
    for bit in range(len(packed) * 8):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadDigest):
            digest.unpack(damaged, entry=3)
    for length in range(len(packed)):
        with pytest.raises(BadDigest):
            digest.unpack(packed[:length], entry=3)


def test_another_entry_is_not_taken_for_the_one_asked_for() -> None:
    digest = EntryDigest(7, Digest.DUMMY, b"")
    packed = b"".join(digest.pack(entry=3, last_confirmed=2, length_bytes=25, data=b"hello"))
    with pytest.raises(BadDigest, match="ledger 7, entry 3"):
        digest.unpack(packed, entry=4)
    with pytest.raises(BadDigest, match="ledger 7, entry 3"):
        EntryDigest(8, Digest.DUMMY, b"").unpack(packed, entry=3)


def test_a_mac_needs_the_password() -> None:
    packed = b"".join(
        EntryDigest(7, Digest.MAC, b"secret").pack(
            entry=0, last_confirmed=-1, length_bytes=5, data=b"hello"
        )
    )
    with pytest.raises(BadDigest):
        EntryDigest(7, Digest.MAC, b"guess").unpack(packed)


def test_keys_and_publications_are_as_ever() -> None:
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    assert master_key(b"secret").hex() == "e793cbc379107648537183605cd361d3bb789a39"
    published = {kind: EntryDigest(7, kind, b"secret").of_last_confirmed(2) for kind in Digest}
    assert {kind: code.hex() for kind, code in published.items()} == PUBLISHED
