"""Bytes of a snapshot's container, the same on disk and on the way to another store. No I/O.

    container   [header][meta][frame][frame]…[end frame]
    header      magic, version, bytes of the meta, checksum of header and meta
    frame       [checksum, kind, payload bytes][payload]

The state's chunks come first, each as it was made; then each extra file, its name and its pieces;
then the end with the totals. Little-endian throughout.

Checksums are XXH3-64 and chained: each is seeded with the one before it, the first with the
header's. So a frame that is missing, moved, repeated or of another snapshot is noticed at once,
and the checksum of the end covers the whole.
"""

from enum import IntEnum
from struct import Struct
from typing import Annotated, Final

import msgspec
from xxhash import xxh3_64_intdigest as checksum_of

from raftwood.base.errors import InvalidName, StoreDamaged, TooLarge
from raftwood.base.files import Buffer
from raftwood.base.names import checked_name
from raftwood.base.versions import unsupported
from raftwood.raft.core import ConfState

VERSION: Final = 1
MAGIC: Final = b"RWSNAPSH"

CHUNK_BYTES_MAX: Final = 8 << 20
"""The largest chunk of a state; a decoder holds one of them."""
META_BYTES_MAX: Final = 8 << 20
EXTRA_FILES_MAX: Final = 1024

_HEADER: Final = Struct("<8sIIQ")  # magic, version, meta bytes, checksum
HEADER_BYTES: Final = _HEADER.size
_HEADER_CHECKED: Final = 16
_FRAME: Final = Struct("<QII")  # checksum, kind, payload bytes
FRAME_BYTES: Final = _FRAME.size
_FRAME_BODY: Final = Struct("<II")
_TOTALS: Final = Struct("<QQQ")  # chunks, extra files, bytes before the end frame
END_BYTES: Final = FRAME_BYTES + _TOTALS.size

_U64: Final = Struct("<Q")

Count = Annotated[int, msgspec.Meta(ge=0)]


class SnapshotMeta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The group and place of a snapshot, and the host's data beside the state."""

    group: Count
    index: Count
    term: Count
    configuration: ConfState
    addresses: dict[int, str]
    """The addresses of the members, by node."""
    host_data: bytes = b""
    """The host's own replicated data, such as its clients' sessions."""
    configuration_index: Count = 0
    """The index of the entry that made the configuration; 0 if an older program wrote it."""


_encode_meta = msgspec.msgpack.Encoder().encode
_decode_meta = msgspec.msgpack.Decoder(SnapshotMeta).decode


class SnapshotFrameKind(IntEnum):
    """What a frame's payload is."""

    CHUNK = 1
    FILE = 2
    """The name of an extra file, whose pieces follow."""
    FILE_PIECE = 3
    END = 4


_KINDS: Final = {int(kind): kind for kind in SnapshotFrameKind}


class SnapshotFrame(msgspec.Struct, frozen=True):
    """One frame that was whole."""

    kind: SnapshotFrameKind
    payload: bytes


class SnapshotEncoder:
    """Makes a container piece by piece; payloads are never copied."""

    def __init__(self, meta: SnapshotMeta) -> None:
        body = _encode_meta(meta)
        if len(body) > META_BYTES_MAX:
            raise TooLarge(
                f"the meta of a snapshot of group {meta.group} has {len(body)} bytes, above "
                f"{META_BYTES_MAX}: keep less host data"
            )
        start = _HEADER.pack(MAGIC, VERSION, len(body), 0)[:_HEADER_CHECKED]
        self._chain = checksum_of(body, checksum_of(start))
        self.header = start + _U64.pack(self._chain) + body
        self.length = len(self.header)
        """Bytes of all that was made so far."""
        self._chunks = 0
        self._files = 0

    def chunk(self, payload: Buffer) -> tuple[Buffer, ...]:
        if len(payload) > CHUNK_BYTES_MAX:
            raise TooLarge(
                f"a chunk of a snapshot has {len(payload)} bytes, above {CHUNK_BYTES_MAX}: the "
                "state machine has to cut its state into smaller chunks"
            )
        self._chunks += 1
        return self._frame(SnapshotFrameKind.CHUNK, payload)

    def file(self, name: str) -> tuple[Buffer, ...]:
        self._files += 1
        return self._frame(SnapshotFrameKind.FILE, checked_name("extra file", name).encode())

    def file_piece(self, payload: Buffer) -> tuple[Buffer, ...]:
        return self._frame(SnapshotFrameKind.FILE_PIECE, payload)

    def end(self) -> tuple[Buffer, ...]:
        return self._frame(
            SnapshotFrameKind.END, _TOTALS.pack(self._chunks, self._files, self.length)
        )

    def _frame(self, kind: SnapshotFrameKind, payload: Buffer) -> tuple[Buffer, ...]:
        body = _FRAME_BODY.pack(kind, len(payload))
        self._chain = checksum_of(payload, checksum_of(body, self._chain))
        self.length += FRAME_BYTES + len(payload)
        return _U64.pack(self._chain) + body, payload


class SnapshotDecoder:
    """Takes a container's bytes as they come; `StoreDamaged` where they are none, saying why."""

    def __init__(self) -> None:
        self.meta: SnapshotMeta | None = None
        """Known once enough bytes were fed."""
        self.ended = False
        self._buffer = bytearray()
        self._offset = 0
        """The buffer's offset in the container."""
        self._chain = 0
        self._chunks = 0
        self._names: set[bytes] = set()

    def feed(self, data: Buffer) -> list[SnapshotFrame]:
        """The frames that are whole with these bytes."""
        self._buffer += data
        parts: list[SnapshotFrame] = []
        with memoryview(self._buffer) as view:
            taken = 0 if self.meta is not None else self._take_header(view)
            if self.meta is not None:
                begin = self._offset
                self._offset += taken
                while step := self._take_frame(view[taken:], parts):
                    taken += step
                    self._offset = begin + taken
        del self._buffer[:taken]
        return parts

    def finish(self) -> None:
        """Checks, after the last bytes, that they are a whole container."""
        if not self.ended:
            raise StoreDamaged(f"it ends at offset {self._offset + len(self._buffer)}, too early")

    def _take_header(self, view: memoryview) -> int:
        if len(view) < HEADER_BYTES:
            if bytes(view[: len(MAGIC)]) != MAGIC[: len(view)]:
                raise StoreDamaged("it does not begin as a snapshot does")
            return 0
        magic, version, meta_bytes, checksum = _HEADER.unpack_from(view)
        if magic != MAGIC:
            raise StoreDamaged("it does not begin as a snapshot does")
        if meta_bytes > META_BYTES_MAX:
            raise StoreDamaged(f"its header tells of {meta_bytes} bytes of meta, too many")
        end = HEADER_BYTES + int(meta_bytes)
        if len(view) < end:
            return 0
        body = bytes(view[HEADER_BYTES:end])
        if checksum != checksum_of(body, checksum_of(view[:_HEADER_CHECKED])):
            raise StoreDamaged("its header does not match its checksum")
        if version != VERSION:
            raise unsupported("it", version, VERSION)
        try:
            self.meta = _decode_meta(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise StoreDamaged(f"its meta cannot be read ({error})") from None
        self._chain = checksum
        return end

    def _take_frame(self, view: memoryview, parts: list[SnapshotFrame]) -> int:
        """Takes the frame at the view's start; returns its bytes, or 0 if it is not whole yet."""
        if self.ended and len(view):
            raise self._damaged("bytes follow its end")
        if len(view) < FRAME_BYTES:
            return 0
        checksum, number, payload_bytes = _FRAME.unpack_from(view)
        kind = _KINDS.get(number)
        if kind is None or payload_bytes > CHUNK_BYTES_MAX:
            raise self._damaged("no frame begins here")
        end = FRAME_BYTES + int(payload_bytes)
        if len(view) < end:
            return 0
        seed = checksum_of(view[8:FRAME_BYTES], self._chain)
        payload = bytes(view[FRAME_BYTES:end])
        if checksum != checksum_of(payload, seed):
            raise self._damaged("a frame does not match its checksum")
        self._chain = checksum
        self._check_order(kind, payload)
        parts.append(SnapshotFrame(kind, payload))
        return end

    def _check_order(self, kind: SnapshotFrameKind, payload: bytes) -> None:
        if kind is SnapshotFrameKind.CHUNK:
            if self._names:
                raise self._damaged("a chunk of the state follows an extra file")
            self._chunks += 1
        elif kind is SnapshotFrameKind.FILE:
            self._take_name(payload)
        elif kind is SnapshotFrameKind.FILE_PIECE:
            if not self._names:
                raise self._damaged("a piece of an extra file has no name before it")
        else:
            if payload != _TOTALS.pack(self._chunks, len(self._names), self._offset):
                raise self._damaged("its totals are not those of what is there")
            self.ended = True

    def _take_name(self, payload: bytes) -> None:
        try:
            checked_name("extra file", payload.decode())
        except (InvalidName, UnicodeDecodeError):
            raise self._damaged("the name of an extra file is not allowed") from None
        if payload in self._names:
            raise self._damaged("an extra file is there twice")
        if len(self._names) >= EXTRA_FILES_MAX:
            raise self._damaged("it has too many extra files")
        self._names.add(payload)

    def _damaged(self, reason: str) -> StoreDamaged:
        return StoreDamaged(f"{reason}, at offset {self._offset}")


def claims_no_files(tail: Buffer) -> bool:
    """Whether a container's last `END_BYTES` say that it has no extra files.

    Only a claim: that the end belongs to the container shows when all of it is decoded.
    """
    if len(tail) != END_BYTES:
        return False
    _, kind, payload_bytes = _FRAME.unpack_from(tail)
    _, files, _ = _TOTALS.unpack_from(tail, FRAME_BYTES)
    return bool(kind == SnapshotFrameKind.END and payload_bytes == _TOTALS.size and files == 0)
