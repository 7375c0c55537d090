"""The protocol between bookies and their clients.

An ADD carries all entries that came up for one bookie in a turn of the client's loop, one after
the other: a head (size of the packed entry, flags, size of the key), the ledger's master key, the
packed entry. Its answer is empty if all were added, else it has an error for each that was not.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from raftwood.base.errors import InvalidInput, ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.dlog.bookie.ledger_descriptor import MASTER_KEY_BYTES_MAX, checked_head
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.net import Identity, Method, Payload, TypedMethod
from raftwood.net.identity import CLIENT_ROLE, OPERATOR_ROLE, STORE_ROLE
from raftwood.net.method_numbers import MethodNumber
from raftwood.net.wire_errors import decode_error, encode_error

BOOKIE_ROLE: Final = "bookie"
_WRITERS: Final = (CLIENT_ROLE, OPERATOR_ROLE, STORE_ROLE)
_ADD_HEAD: Final = Struct("<IBB")
_NUMBER: Final = Struct("<q")
_READ: Final = Struct("<qq")
_IS_RECOVERY: Final = 1
ENTRY_BYTES_MAX: Final = 16 << 20
"""The size of a packed entry; it fits in half a segment of the log, and several in a frame."""


class FenceRequest(msgspec.Struct, frozen=True, array_like=True):
    """Fence a ledger, then read one of its entries."""

    ledger: int
    entry: int
    master_key: bytes


class WaitRequest(msgspec.Struct, frozen=True, array_like=True):
    """Wait for a last confirmed entry above a number."""

    ledger: int
    after: int
    timeout_ms: int


class PublishRequest(msgspec.Struct, frozen=True, array_like=True):
    """Publish how far readers may read."""

    ledger: int
    last_confirmed: int
    master_key: bytes


ADD: Final = Method(MethodNumber.BOOKIE_ADD, "bookie-add", roles=_WRITERS)
READ: Final = Method(MethodNumber.BOOKIE_READ, "bookie-read")
FENCE: Final = Method(MethodNumber.BOOKIE_FENCE, "bookie-fence", roles=_WRITERS)
LAST_CONFIRMED: Final = Method(MethodNumber.BOOKIE_LAST_CONFIRMED, "bookie-last-confirmed")
WAIT: Final = TypedMethod(
    MethodNumber.BOOKIE_WAIT, "bookie-wait", request=WaitRequest, response=int
)
PUBLISH: Final = TypedMethod(
    MethodNumber.BOOKIE_PUBLISH,
    "bookie-publish",
    request=PublishRequest,
    response=type(None),
    roles=_WRITERS,
)


class PackedAdd(msgspec.Struct, frozen=True):
    """One entry to add: `encoded` is the same for every bookie."""

    entry: int
    master_key: bytes
    is_recovery: bool
    packed: bytes
    head: bytes

    @property
    def size(self) -> int:
        return len(self.head) + len(self.packed)


def prepare(
    packed: Sequence[Buffer], master_key: bytes, *, ledger: int, entry: int, is_recovery: bool
) -> PackedAdd:
    """Encodes an entry once for all bookies."""
    whole = b"".join(packed)
    if checked_head(whole)[:2] != (ledger, entry):
        raise InvalidInput(f"what was packed is not entry {entry} of ledger {ledger}")
    if len(whole) > ENTRY_BYTES_MAX or len(master_key) > MASTER_KEY_BYTES_MAX:
        raise InvalidInput(
            f"an entry of {len(whole)} bytes with a key of {len(master_key)}: up to "
            f"{ENTRY_BYTES_MAX} and {MASTER_KEY_BYTES_MAX} are taken; split it"
        )
    flags = _IS_RECOVERY if is_recovery else 0
    head = _ADD_HEAD.pack(len(whole), flags, len(master_key)) + master_key
    return PackedAdd(entry, master_key, is_recovery, whole, head)


def decode_adds(payload: Payload) -> list[tuple[Buffer, bytes, bool]]:
    """Returns the packed entries, each with its key and whether a recovery adds it."""
    view = memoryview(payload)
    end = len(view)
    adds: list[tuple[Buffer, bytes, bool]] = []
    offset = 0
    while offset < end:
        if offset + _ADD_HEAD.size > end:
            raise InvalidInput("an add ends within its head")
        size, flags, key_bytes = _ADD_HEAD.unpack_from(view, offset)
        offset += _ADD_HEAD.size
        packed_at = offset + key_bytes
        if packed_at + size > end or flags & ~_IS_RECOVERY or size > ENTRY_BYTES_MAX:
            raise InvalidInput("an add is not whole, or has flags of a newer version")
        key = bytes(view[offset:packed_at])
        offset = packed_at + size
        adds.append((view[packed_at:offset], key, bool(flags)))
    return adds


def encode_refusals(refusals: Sequence[tuple[int, RaftwoodError]]) -> bytes:
    """Encodes errors by the place of the entry in its request."""
    if not refusals:
        return b""
    return msgspec.msgpack.encode([(place, encode_error(error)) for place, error in refusals])


_decode_refusals = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode


def decode_refusals(payload: Payload, count: int) -> dict[int, RaftwoodError]:
    """The errors of the entries that were not added, by their place in the request."""
    if not payload:
        return {}
    try:
        refusals = {place: decode_error(error) for place, error in _decode_refusals(payload)}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the answer to an add cannot be read: {error}") from error
    if not all(0 <= place < count for place in refusals):
        raise ProtocolError(f"the answer to {count} adds names others")
    return refusals


def encode_read(ledger: int, entry: int) -> bytes:
    return _READ.pack(ledger, entry)


def decode_read(payload: Payload) -> tuple[int, int]:
    if len(payload) != _READ.size:
        raise InvalidInput(f"a read has {len(payload)} bytes, not {_READ.size}")
    ledger, entry = _READ.unpack(payload)
    return ledger, entry


_decode_fence = msgspec.msgpack.Decoder(FenceRequest).decode
encode_fence: Final = msgspec.msgpack.Encoder().encode


def decode_fence(payload: Payload) -> FenceRequest:
    try:
        return _decode_fence(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"a request to fence cannot be read: {error}") from error


def encode_number(number: int) -> bytes:
    return _NUMBER.pack(number)


def decode_ledger(payload: Payload) -> int:
    if len(payload) != _NUMBER.size:
        raise InvalidInput(f"a ledger's number has {len(payload)} bytes, not {_NUMBER.size}")
    return int(_NUMBER.unpack(payload)[0])


def decode_last_confirmed(payload: Payload) -> tuple[int, Buffer]:
    """Returns the published last confirmed entry, and the packed entry with the highest number."""
    if len(payload) < _NUMBER.size:
        raise ProtocolError("the answer with the last confirmed entry is not whole")
    return int(_NUMBER.unpack_from(payload)[0]), memoryview(payload)[_NUMBER.size :]


def bookie_identity(bookie: BookieId) -> Identity:
    """The identity of a bookie on the network; names have no colons and brackets."""
    name = "".join(each if each.isalnum() and each.isascii() else "-" for each in bookie)
    return Identity(role=BOOKIE_ROLE, node_id=f"b{name[:120]}")
