"""What shippers, receivers and whoever sets a ring's configuration hand to each other."""

import contextlib
import zlib

import xxhash

from raftwood.base.compression import Codec
from raftwood.base.errors import InvalidConfiguration, ProtocolError, UnsupportedVersion
from raftwood.clogs.configuration import (
    LogServer,
    RingConfiguration,
    configuration_digest,
    decode_configuration,
    decode_file,
    encode_configuration,
)
from raftwood.clogs.frames import ClogsMessage, MessageType, decode_message, encode_message, joined

_CHECKSUM_BYTES = 8


def frame_target(data: bytes) -> None:
    """With the checksum that it ought to have, since few inputs have it by chance; some as they
    are."""
    frame = data if _is_chosen(data) else _checked(data)
    with contextlib.suppress(ProtocolError, UnsupportedVersion):
        message = decode_message(frame)
        assert joined(encode_message(message)) == frame


def _is_chosen(data: bytes) -> bool:
    """One of eight."""
    return zlib.crc32(data) % 8 == 1


def _checked(data: bytes) -> bytes:
    front = data[:-_CHECKSUM_BYTES]
    return front + xxhash.xxh3_64_intdigest(front).to_bytes(_CHECKSUM_BYTES, "little")


def frame_seeds() -> list[bytes]:
    data = ClogsMessage(
        type=MessageType.DATA,
        system=7,
        name="/var/log/{app}.log",
        producer=bytes(range(16)),
        sequence=1 << 40,
        count=3,
        raw_bytes=900,
        codec=Codec.ZSTD,
        place="shard-3",
        body=b"a body of some bytes",
    )
    resumed = ClogsMessage(type=MessageType.DATA, name="ü", is_resumed=True, body=b"x")
    ping = ClogsMessage(type=MessageType.PING, sequence=4)
    ack = ClogsMessage(type=MessageType.ACK, sequence=9, place="shard-4")
    return [joined(encode_message(each)) for each in (data, resumed, ping, ack)]


def configuration_target(data: bytes) -> None:
    """What is taken has a canonical text, which is taken again and is the same.

    TOML gets some of the inputs: its parser, which is slow, has a target of its own.
    """
    is_json = data.lstrip()[:1] == b"{"
    if is_json or _is_chosen(data):
        with contextlib.suppress(InvalidConfiguration):
            configuration, version = decode_file(data, "ring.json" if is_json else "ring.toml")
            assert version is None or version > 0
            assert decode_configuration(encode_configuration(configuration)) == configuration
            assert configuration_digest(configuration)


def configuration_seeds() -> list[bytes]:
    servers = (
        LogServer(host="10.0.0.1", port=11211, weight=3),
        LogServer(host="::1", port=9000, name="one"),
    )
    pinned = RingConfiguration(servers=servers, hash_tag="", pins={"/var/log/a": "one"})
    short = b'{"version": 3, "servers": [{"host": "h", "port": 1}], "ha": {"check_gap_ms": 50}}'
    toml = b'version = 2\nhash_tag = "<>"\n[[servers]]\nhost = "h"\nport = 1\nname = "\xc3\xbc"\n'
    toml += b'[pins]\n"a" = "\xc3\xbc"\n[ha]\ninvalid_checks_max = 2\n'
    return [encode_configuration(pinned), short, toml]
