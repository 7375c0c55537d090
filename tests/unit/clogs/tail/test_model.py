"""A file's state on disk: its bytes, and what is refused."""

import msgspec
import pytest

from raftwood.base.compression import Codec
from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.clogs.tail.checkpoints import (
    BatchIntent,
    FileCheckpoint,
    FileHead,
    FileIdentity,
    decode_checkpoint,
    encode_checkpoint,
)

CHECKPOINT = FileCheckpoint(
    identity=FileIdentity(3, 4),
    path="/l/a.log.1",
    folder="/l",
    name="a.log",
    home="/l/a.log",
    offset=10,
    is_mid_line=True,
    cuts=2,
    head=FileHead(10, 5),
    intents=(
        BatchIntent(
            producer=bytes(16),
            sequence=7,
            begin=10,
            end=30,
            checksum=99,
            cuts=2,
            codec=Codec.LZ4,
            rules=8,
            begins_mid_line=True,
        ),
    ),
    birth_ns=42,
)
GOLDEN = (
    "9c01920304aa2f6c2f612e6c6f672e31a22f6ca5612e6c6f67a82f6c2f612e6c6f670ac302920a05919ac4100000"
    "0000000000000000000000000000070a1e63020108c3c22a"
)


def test_the_bytes_of_a_checkpoint_stay_as_they_are() -> None:
    assert encode_checkpoint(CHECKPOINT).hex() == GOLDEN
    assert decode_checkpoint(bytes.fromhex(GOLDEN)) == CHECKPOINT


def test_a_later_version_is_refused() -> None:
    later = msgspec.structs.replace(CHECKPOINT, version=2)
    with pytest.raises(UnsupportedVersion, match="format 2"):
        decode_checkpoint(encode_checkpoint(later))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x91\xa1x", b"\x91\x01", b"\xc1"])
def test_what_is_no_checkpoint_is_damage(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match="cannot be read"):
        decode_checkpoint(data)


def test_a_head_tells_one_beginning_from_another() -> None:
    head = FileHead.of(b"first line\nsecond", 10)
    assert head.begins(b"first line\nother")
    assert not head.begins(b"first lin")
    assert not head.begins(b"fierst line\nsecond")
    assert FileHead().begins(b"")
