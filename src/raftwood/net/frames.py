"""The wire format as a pure state machine: bytes in, frames out, and the way back.

A frame is a header of 32 bytes and a payload, little-endian:

    offset  bytes  field
         0      4  magic "RWF" and the frame version
         4      8  checksum: XXH3-64 over everything that follows it, payload included
        12      1  kind
        13      1  flags: none is defined yet; read as part of the kind, so that one is refused
        14      2  method
        16      4  length of the payload
        20      8  request id
        28      4  argument: what it means depends on the kind

The checksum stands before what it covers, so a small frame is hashed in one piece. A length is
checked against the limit before anything is allocated for it. Frames that fit the receive buffer
are copied out of it as `bytes`; a larger one gets a buffer of its own, is received into it directly
and is handed on as a `memoryview` without a copy.

`FrameBuffers` reuses the buffers of large frames once no view of them is left: a new one costs as
much as the copy of a frame, since it is filled with zeros, page by page.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, TypeAlias

from xxhash import xxh3_64, xxh3_64_intdigest

from raftwood.base.errors import ProtocolError
from raftwood.base.files import Buffer
from raftwood.base.names import FRAME_BYTES_MAX

SPARES_MAX: Final = 3
SPARE_BYTES_MAX: Final = 4 << 20
_STEPS_BITS: Final = 3


class FrameBuffers:
    """The buffers of one connection's large frames."""

    __slots__ = ("_spares",)

    def __init__(self) -> None:
        self._spares: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """Returns a buffer with room for `size` bytes."""
        spares = self._spares
        for spare in spares:
            if len(spare) >= size and _is_free(spare):
                return spare
        # Sizes in steps, so that frames of about the same size share buffers.
        step = max(1, 1 << size.bit_length() - _STEPS_BITS - 1)
        made = bytearray(-(-size // step) * step)
        if len(made) <= SPARE_BYTES_MAX:
            if len(spares) >= SPARES_MAX:
                del spares[0]
            spares.append(made)
        return made

    def clear(self) -> None:
        """Drops all buffers."""
        self._spares.clear()


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of a buffer exists: a viewed buffer cannot be resized."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True


Payload: TypeAlias = bytes | memoryview
Frame: TypeAlias = tuple[int, int, int, int, Payload]
"""kind, method, request id, argument, payload: a plain tuple, because millions are made."""

FRAME_VERSION = 1
MAGIC = int.from_bytes(b"RWF", "little") | FRAME_VERSION << 24
HEADER_BYTES = 32
CHECKED_FROM = 12
RECEIVE_BYTES = 32 << 10
"""The shared receive buffer; a frame above it gets a buffer of its own."""
TAIL_BYTES = 4 << 10
"""Room behind a large frame's own buffer, so that one receive can also fetch the next header."""
JOINED_BYTES_MAX = 8 << 10
"""Payloads up to this size are copied behind their header; larger ones are written as they are."""
ARGUMENT_MAX = (1 << 32) - 1

_HTTP_BEGINNINGS: Final = frozenset(
    (b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"TRAC", b"PRI ")
)
"""The first bytes of an answer, of each method, and of HTTP/2."""

_HEADER = struct.Struct("<IQHHIQI")
_HEAD = struct.Struct("<IQ")
_REST = struct.Struct("<HHIQI")
_pack_head = _HEAD.pack
_pack_rest = _REST.pack


class FrameKind(IntEnum):
    """What a frame is for; the handshake comes first, once per connection."""

    HELLO = 1
    """Client to server; argument: the protocol version."""
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4

    REQUEST = 8
    """Argument: remaining milliseconds, or 0 for no deadline."""
    RESPONSE = 9
    ERROR = 10
    """Payload: code and message; with request id 0 it concerns the whole connection."""
    STREAM_ITEM = 11
    STREAM_END = 12
    CREDIT = 13
    """Argument: bytes that the server may send more on this stream."""
    CANCEL = 14
    ONE_WAY = 15
    """A request that is never answered; it has no id and no deadline."""

    PING = 16
    PONG = 17
    GOAWAY = 18
    """The server takes no new requests; those under way are finished."""


def append_frame(
    parts: list[Buffer],
    kind: int,
    method: int,
    request_id: int,
    argument: int,
    payload: Buffer | list[Buffer],
) -> int:
    """Appends a frame's buffers to `parts`; returns the frame's size in bytes.

    A payload above `JOINED_BYTES_MAX` is not copied: it must not change until it is written. One
    in several pieces comes from `gathered`.
    """
    if type(payload) is not bytes:
        if isinstance(payload, list):
            return _append_pieces(parts, kind, method, request_id, argument, payload)
        payload = _as_bytes(payload)
    length = len(payload)
    if length <= JOINED_BYTES_MAX:
        body = _pack_rest(kind, method, length, request_id, argument) + payload
        parts.append(_pack_head(MAGIC, xxh3_64_intdigest(body)))
        parts.append(body)
        return HEADER_BYTES + length
    return _append_pieces(parts, kind, method, request_id, argument, (payload,))


def _append_pieces(
    parts: list[Buffer],
    kind: int,
    method: int,
    request_id: int,
    argument: int,
    pieces: Sequence[Buffer],
) -> int:
    length = sum(map(len, pieces))
    rest = _pack_rest(kind, method, length, request_id, argument)
    digest = xxh3_64(rest)
    for piece in pieces:
        digest.update(piece)
    parts.append(_pack_head(MAGIC, digest.intdigest()))
    parts.append(rest)
    parts += pieces
    return HEADER_BYTES + length


def gathered(payload: Buffer | Sequence[Buffer]) -> tuple[Buffer | list[Buffer], int]:
    """Returns a payload of one or several buffers as `append_frame` takes it, and its size."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        whole = _as_bytes(payload)
        return whole, len(whole)
    pieces = joined([piece if type(piece) is bytes else _as_bytes(piece) for piece in payload])
    if not pieces:
        return b"", 0
    # One piece alone takes the way of a plain payload, which is cheaper where it is small.
    return (pieces[0] if len(pieces) == 1 else pieces), sum(map(len, pieces))


def joined(parts: list[Buffer]) -> list[Buffer]:
    """Returns the same bytes in fewer buffers: runs of small ones become one, large ones stay."""
    fewer: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) <= HEADER_BYTES + JOINED_BYTES_MAX:
            small.append(part)
        else:
            if small:
                fewer.append(b"".join(small))
                small = []
            fewer.append(part)
    if small:
        fewer.append(b"".join(small))
    return fewer


def encode_frame(
    kind: int,
    *,
    method: int = 0,
    request_id: int = 0,
    argument: int = 0,
    payload: Buffer = b"",
) -> bytes:
    """Returns one frame in one piece: for handshakes and tests."""
    parts: list[Buffer] = []
    append_frame(parts, kind, method, request_id, argument, payload)
    return b"".join(parts)


def size_of(payload: Buffer) -> int:
    """The size in bytes, not items."""
    return len(payload) if type(payload) is bytes else memoryview(payload).nbytes


def _as_bytes(payload: Buffer) -> bytes | memoryview:
    """Returns a view of bytes: the length of a view of larger items would count items."""
    view = memoryview(payload)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class HttpReceived(ProtocolError):
    """The peer speaks HTTP: one of the two is at the wrong port."""


class FrameDecoder:
    """Turns received bytes into frames; any input gives frames, nothing yet, or ProtocolError.

    The driver calls `get_buffer`, fills it from the front, and passes the count to `received`.
    After a ProtocolError the connection must be closed: the start of the next frame is unknown.
    """

    __slots__ = (
        "_buffer",
        "_filled",
        "_needed",
        "_own",
        "_own_filled",
        "_own_frame",
        "_own_length",
        "_receive_bytes",
        "_view",
        "own_buffers",
        "payload_bytes_max",
    )

    def __init__(
        self, *, payload_bytes_max: int = FRAME_BYTES_MAX, receive_bytes: int = RECEIVE_BYTES
    ) -> None:
        self.payload_bytes_max = payload_bytes_max
        self._receive_bytes = max(receive_bytes, TAIL_BYTES)
        self._buffer = bytearray(self._receive_bytes)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._needed = HEADER_BYTES
        self.own_buffers = FrameBuffers()
        self._own: memoryview | None = None
        self._own_filled = 0
        self._own_length = 0
        self._own_frame = (0, 0, 0, 0, 0)

    @property
    def is_between_frames(self) -> bool:
        return self._own is None and self._filled == 0

    def widen(self, *, payload_bytes_max: int, receive_bytes: int = RECEIVE_BYTES) -> None:
        """Allows larger frames, with a larger receive buffer: once the peer is authenticated."""
        self.payload_bytes_max = payload_bytes_max
        if receive_bytes > self._receive_bytes:
            buffer = bytearray(receive_bytes)
            buffer[: self._filled] = self._view[: self._filled]
            self._receive_bytes = receive_bytes
            self._buffer = buffer
            self._view = memoryview(buffer)

    def get_buffer(self) -> memoryview:
        """Returns room for the next received bytes; never empty."""
        own = self._own
        if own is not None:
            return own[self._own_filled :]
        return self._view[self._filled :]

    def received(self, count: int) -> list[Frame]:
        """Notes `count` bytes put into the buffer; returns the frames now complete."""
        frames: list[Frame] = []
        own = self._own
        if own is not None:
            filled = self._own_filled + count
            length = self._own_length
            if filled < length:
                self._own_filled = filled
                return frames
            frames.append(self._finished_own_frame(own[:length]))
            surplus = filled - length
            self._buffer[:surplus] = own[length:filled]
            filled = surplus
            self._own = None
        else:
            filled = self._filled + count
        if filled < self._needed:
            self._filled = filled
            return frames
        self._parse(filled, frames)
        return frames

    def _parse(self, filled: int, frames: list[Frame]) -> None:
        # One copy of the whole piece: slicing bytes is far cheaper than slicing the shared buffer,
        # and the rest can move to the front without overlapping.
        chunk = bytes(self._view[:filled])
        view = memoryview(chunk)
        unpack = _HEADER.unpack_from
        limit = self.payload_bytes_max
        position = 0
        needed = HEADER_BYTES
        while filled - position >= HEADER_BYTES:
            magic, checksum, kind, method, length, request_id, argument = unpack(chunk, position)
            if magic != MAGIC:
                raise _wrong_magic(magic)
            if length > limit:
                raise ProtocolError(f"a frame announces {length} bytes; the limit is {limit}")
            body = position + HEADER_BYTES
            end = body + length
            if end > filled:
                needed = HEADER_BYTES + length
                if needed > self._receive_bytes:
                    self._begin_own_frame(
                        (checksum, kind, method, request_id, argument), length, view[body:]
                    )
                    position = filled
                    needed = HEADER_BYTES
                break
            if xxh3_64_intdigest(view[position + CHECKED_FROM : end]) != checksum:
                raise ProtocolError("a frame does not match its checksum")
            frames.append((kind, method, request_id, argument, chunk[body:end]))
            position = end
        left = filled - position
        if left:
            self._buffer[:left] = view[position:]
        self._filled = left
        self._needed = needed

    def _begin_own_frame(
        self, frame: tuple[int, int, int, int, int], length: int, begun: memoryview
    ) -> None:
        own = memoryview(self.own_buffers.take(length + TAIL_BYTES))[: length + TAIL_BYTES]
        own[: len(begun)] = begun
        self._own = own
        self._own_filled = len(begun)
        self._own_length = length
        self._own_frame = frame

    def _finished_own_frame(self, payload: memoryview) -> Frame:
        checksum, kind, method, request_id, argument = self._own_frame
        digest = xxh3_64(_pack_rest(kind, method, len(payload), request_id, argument))
        digest.update(payload)
        if digest.intdigest() != checksum:
            raise ProtocolError("a frame does not match its checksum")
        return (kind, method, request_id, argument, payload)

    def feed(self, data: Buffer) -> list[Frame]:
        """Copies bytes in and returns the frames: for tests and fuzzing, without a socket."""
        frames: list[Frame] = []
        view = memoryview(data)
        while view:
            buffer = self.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            frames += self.received(count)
            view = view[count:]
        return frames


def _wrong_magic(magic: int) -> ProtocolError:
    if magic & 0xFFFFFF == MAGIC & 0xFFFFFF:
        return ProtocolError(
            f"the peer uses frame version {magic >> 24}; this one reads {FRAME_VERSION}"
        )
    if magic.to_bytes(4, "little") in _HTTP_BEGINNINGS:
        return HttpReceived("the peer speaks HTTP, and this is a native connection of raftwood")
    return ProtocolError("this is not a raftwood connection: a frame does not begin with the magic")
