"""BookKeeper's third protocol: protobuf behind a length of four bytes, numbered requests.

An add is put together by hand, around the bytes of the entry; the rest is rare, and left to
protobuf.
"""

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from raftwood.base.errors import ProtocolError
from raftwood.base.files import Buffer
from raftwood.dlog.bookkeeper.messages import Request, Response

VERSION: Final = 3
READ_ENTRY: Final = 1
ADD_ENTRY: Final = 2
WRITE_LAC: Final = 6
READ_LAC: Final = 7
START_TLS: Final = 9

_FENCE: Final = 1
_PIGGYBACK: Final = 2
_HIGH_PRIORITY: Final = 100
"""What BookKeeper's own client gives requests that fence."""

_RECOVERY_ADD: Final = b"\xa0\x06\x01"
"""Field 100, the flag."""


def add_request(
    number: int,
    *,
    ledger: int,
    entry: int,
    packed: Sequence[Buffer],
    master_key: bytes,
    is_recovery: bool,
) -> bytes:
    head = b"\x08\x03\x10\x02\x18" + _varint(number)
    body_bytes = sum(map(len, packed))
    before = b"".join(
        (b"\x08", _varint(ledger), b"\x10", _varint(entry), b"\x1a\x14", master_key, b"\x22",
         _varint(body_bytes))
    )  # fmt: skip
    after = _RECOVERY_ADD if is_recovery else b""
    # Field 1 is the head, field 101 the add.
    start = b"".join(
        (b"\x0a", _varint(len(head)), head, b"\xaa\x06",
         _varint(len(before) + body_bytes + len(after)), before)
    )  # fmt: skip
    size = len(start) + body_bytes + len(after)
    return b"".join((size.to_bytes(4), start, *packed, after))


def read_request(number: int, *, ledger: int, entry: int, fence_key: bytes | None) -> bytes:
    request = _request(number, READ_ENTRY)
    request.readRequest.ledgerId = ledger
    request.readRequest.entryId = entry
    if fence_key is not None:
        request.header.priority = _HIGH_PRIORITY
        request.readRequest.masterKey = fence_key
        request.readRequest.flag = _FENCE
    return _framed(request)


def wait_request(number: int, *, ledger: int, after: int, timeout_ms: int) -> bytes:
    """Answered once there is a last confirmed entry above `after`, or the time is over."""
    request = _request(number, READ_ENTRY)
    request.readRequest.ledgerId = ledger
    request.readRequest.entryId = -1
    request.readRequest.previousLAC = after
    request.readRequest.timeOut = timeout_ms
    request.readRequest.flag = _PIGGYBACK
    return _framed(request)


def write_last_confirmed_request(
    number: int, *, ledger: int, last_confirmed: int, master_key: bytes, body: bytes
) -> bytes:
    request = _request(number, WRITE_LAC)
    request.writeLacRequest.ledgerId = ledger
    request.writeLacRequest.lac = last_confirmed
    request.writeLacRequest.masterKey = master_key
    request.writeLacRequest.body = body
    return _framed(request)


def read_last_confirmed_request(number: int, *, ledger: int) -> bytes:
    request = _request(number, READ_LAC)
    request.readLacRequest.ledgerId = ledger
    return _framed(request)


def start_tls_request(number: int) -> bytes:
    request = _request(number, START_TLS)
    request.startTLSRequest.SetInParent()
    return _framed(request)


def parse_response(frame: bytes) -> Any:
    """Without its length; `ProtocolError` where it is no answer."""
    try:
        response = Response.FromString(frame)
    except DecodeError as error:
        raise ProtocolError(f"an answer of {len(frame)} bytes is no protobuf: {error}") from None
    if not response.header.HasField("txnId") or not response.HasField("status"):
        raise ProtocolError(f"an answer of {len(frame)} bytes has no number or no status")
    return response


def status_of(response: Any, inner: Any) -> int:
    """That of the answer, or the more exact one within it."""
    return int(inner.status or response.status)


def _request(number: int, operation: int) -> Any:
    request = Request()
    request.header.version = VERSION
    request.header.operation = operation
    request.header.txnId = number
    return request


def _framed(request: Any) -> bytes:
    encoded: bytes = request.SerializeToString()
    return len(encoded).to_bytes(4) + encoded


def _varint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes(1)
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
