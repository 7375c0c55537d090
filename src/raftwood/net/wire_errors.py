"""Errors on the wire: a code and a message go out, the same class comes out on the other side."""

import msgspec

from raftwood.base.errors import InternalError, RaftwoodError, error_class

MESSAGE_BYTES_MAX = 512
"""So that an error never outgrows a frame of the handshake."""


class _WireError(msgspec.Struct, array_like=True, frozen=True):
    code: str
    message: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_WireError).decode


def encode_error(error: RaftwoodError) -> bytes:
    """The payload of an ERROR frame."""
    # A message may quote input with lone surrogates, which have no encoding; the cut may split a
    # character.
    message = error.message.encode("utf-8", "replace")[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore")
    return _encode(_WireError(error.code, message))


def decode_error(payload: bytes | memoryview) -> RaftwoodError:
    """The error a peer sent; what cannot be read is an InternalError, for an error it was."""
    try:
        wire = _decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return InternalError("the peer sent an error that cannot be read")
    return error_class(wire.code)(wire.message)
