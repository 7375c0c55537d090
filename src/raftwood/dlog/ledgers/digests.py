"""Packs entries for bookies, and checks them when they come back.

Byte for byte as BookKeeper does: a head of four big-endian numbers (ledger, entry, last confirmed
entry, length of all entries' data so far), the digest over head and data, the data.
"""

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

import google_crc32c

from raftwood.base.files import Buffer
from raftwood.dlog.errors import BadDigest
from raftwood.dlog.ledgers.metadata import Digest

_HEAD = struct.Struct(">qqqq")
_LAST_CONFIRMED = struct.Struct(">qq")
HEAD_BYTES = _HEAD.size
ANY_ENTRY = -1
"""The last entry that a bookie holds, whichever it is."""


class UnpackedEntry(NamedTuple):
    """An entry whose digest was checked."""

    entry: int
    last_confirmed: int
    length_bytes: int
    """The length of all entries' data up to this one."""
    data: bytes


def master_key(password: bytes) -> bytes:
    """The key that a bookie requires before it takes an entry or fences a ledger."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def _crc32c(head: bytes, data: Buffer) -> bytes:
    payload = data if type(data) is bytes else bytes(data)
    code: int = google_crc32c.extend(google_crc32c.value(head), payload)
    return code.to_bytes(4, "big")


def _crc32(head: bytes, data: Buffer) -> bytes:
    return zlib.crc32(data, zlib.crc32(head)).to_bytes(8, "big")


def _none(_head: bytes, _data: Buffer) -> bytes:
    return b""


def _mac(password: bytes) -> Callable[[bytes, Buffer], bytes]:
    key = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()
    begun = hmac.new(key, digestmod="sha1")

    def code(head: bytes, data: Buffer) -> bytes:
        mac = begun.copy()
        mac.update(head)
        mac.update(data)
        return mac.digest()

    return code


def _coder(kind: Digest, password: bytes) -> Callable[[bytes, Buffer], bytes]:
    if kind is Digest.MAC:
        return _mac(password)
    return {Digest.CRC32C: _crc32c, Digest.CRC32: _crc32, Digest.DUMMY: _none}[kind]


class EntryDigest:
    """Packs and checks the entries of one ledger."""

    __slots__ = ("_begin", "_code", "_ledger")

    def __init__(self, ledger: int, kind: Digest, password: bytes) -> None:
        self._ledger = ledger
        self._code = _coder(kind, password)
        self._begin = HEAD_BYTES + len(self._code(b"", b""))

    def pack(
        self, *, entry: int, last_confirmed: int, length_bytes: int, data: Buffer
    ) -> tuple[bytes, Buffer]:
        """Returns head and digest, and the data as they are: nothing is copied."""
        head = _HEAD.pack(self._ledger, entry, last_confirmed, length_bytes)
        return head + self._code(head, data), data

    def unpack(self, packed: Buffer, *, entry: int = ANY_ENTRY) -> UnpackedEntry:
        """Unpacks an entry; `BadDigest` if its bytes changed, or it is another entry."""
        if len(packed) < self._begin:
            raise BadDigest(
                f"ledger {self._ledger}, entry {entry}: {len(packed)} bytes are less than a head"
            )
        head, data = bytes(packed[:HEAD_BYTES]), bytes(packed[self._begin :])
        ledger, found, last_confirmed, length_bytes = _HEAD.unpack(head)
        if packed[HEAD_BYTES : self._begin] != self._code(head, data):
            raise BadDigest(f"ledger {self._ledger}, entry {entry}: the digest is another one")
        if ledger != self._ledger or (entry not in (ANY_ENTRY, found)):
            raise BadDigest(
                f"ledger {self._ledger}, entry {entry}: the bookie has sent ledger {ledger}, "
                f"entry {found}"
            )
        return UnpackedEntry(found, last_confirmed, length_bytes, data)

    def of_last_confirmed(self, last_confirmed: int) -> bytes:
        """The digest, without head, that protects a published last confirmed entry."""
        return self._code(_LAST_CONFIRMED.pack(self._ledger, last_confirmed), b"")
