"""What processes that share logs of ledgers send to one another."""

from raftwood.base.errors import InvalidInput, LogSealed, ProtocolError, StoreDamaged
from raftwood.base.position import Position
from raftwood.dlog.owner_records import decode_owner, encode_owner
from raftwood.dlog.ownership import LogOwner
from raftwood.dlog.peers import (
    AppendRequest,
    decode_append,
    decode_appended,
    encode_append,
    encode_appended,
)


def append_target(data: bytes) -> None:
    try:
        log, batches = decode_append(data)
    except InvalidInput:
        return
    assert decode_append(b"".join(encode_append(log, batches))) == (log, batches)


def append_seeds() -> list[bytes]:
    batches = [AppendRequest(b"producer", 7, (b"ba", b"tch")), AppendRequest(b"p", 1 << 40, ())]
    return [b"".join(encode_append("log", batches)), b"".join(encode_append("empty", []))]


def answer_target(data: bytes) -> None:
    try:
        decode_appended(data)
    except ProtocolError:
        return


def answer_seeds() -> list[bytes]:
    return [encode_appended([Position(1 << 100), LogSealed("it has ended"), Position(0)])]


def owner_target(data: bytes) -> None:
    try:
        owner = decode_owner(data, log="log")
    except StoreDamaged:
        return
    assert decode_owner(encode_owner(owner), log="log") == owner


def owner_seeds() -> list[bytes]:
    return [encode_owner(LogOwner("gateway-1", "127.0.0.1:7200", 12))]
