"""Errors on the wire: a code and a message go out, the same class comes out on the other side.

`wire_fields` of a class travel, too. Unknown fields, or those of another type, are left out: a
newer peer may have added them. The codes of a class's ancestors travel as well: a client lacks
classes that only servers raise, and must still know whether to try again.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from raftwood.base.errors import InternalError, RaftwoodError, error_class

MESSAGE_BYTES_MAX = 512
"""Limits the message, so that an error fits a frame of the handshake."""


class _WireError(msgspec.Struct, array_like=True, frozen=True):
    code: str
    message: str
    fields: dict[str, msgspec.Raw] = {}
    ancestors: tuple[str, ...] = ()
    """Codes of the ancestors, the nearest first."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_WireError).decode
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def encode_error(error: RaftwoodError) -> bytes:
    """Encodes the payload of an ERROR frame."""
    # A message may quote input with lone surrogates, which have no encoding; the cut may split a
    # character.
    message = error.message.encode("utf-8", "replace")[:MESSAGE_BYTES_MAX].decode("utf-8", "ignore")
    fields = {name: getattr(error, name) for name in error.wire_fields}
    ancestors = _ancestors(type(error))
    if not fields and not ancestors:
        return _encode((error.code, message))
    return _encode((error.code, message, fields, ancestors))


def _ancestors(kind: type[RaftwoodError]) -> tuple[str, ...]:
    """The ancestors' codes of a class that other packages define."""
    if kind.__module__ == RaftwoodError.__module__:
        return ()
    return tuple(
        each.code
        for each in kind.__mro__[1:]
        if issubclass(each, RaftwoodError) and each is not RaftwoodError
    )


def decode_error(payload: bytes | memoryview) -> RaftwoodError:
    """Decodes a peer's error; an unreadable one becomes an InternalError."""
    try:
        wire = _decode(payload)
    except _UNREADABLE:
        return InternalError("the peer sent an error that cannot be read")
    kind = error_class(wire.code, *wire.ancestors)
    return kind(wire.message, **_known_fields(kind, wire.fields))


def _known_fields(kind: type[RaftwoodError], fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    known = {}
    for name, expected in kind.wire_fields.items():
        if name in fields:
            with contextlib.suppress(*_UNREADABLE):
                known[name] = msgspec.msgpack.decode(fields[name], type=expected)
    return known
