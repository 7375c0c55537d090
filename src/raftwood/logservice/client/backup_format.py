"""A shard's backup in a folder: files of records, and a manifest that is written last.

    records-00001.rwlb …    magic (4), version (1), then chunks
    chunk                   length (4), xxh3-64 of the body (8), body: records as on the wire
    manifest.json           a `Manifest`, which names all files with their lengths and checksums

Big-endian. A folder without a manifest is of a backup that was interrupted. LSNs without a record
are not written: what is not in the files is a hole.
"""

import errno
import struct
from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
import xxhash

from raftwood.base.errors import (
    DiskFull,
    ProtocolError,
    RaftwoodError,
    StoreDamaged,
    StoreError,
    UnsupportedVersion,
)
from raftwood.base.files import Files, Read, Size, perform
from raftwood.logservice.records import Record
from raftwood.logservice.restoring import NUMBER_MAX
from raftwood.logservice.wire import decode_records

FORMAT: Final = "raftwood-log-backup"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
MANIFEST_BYTES_MAX: Final = 64 << 20
FILE_HEAD: Final = b"RWLB" + bytes([VERSION])
CHUNK: Final = struct.Struct(">IQ")
CHUNK_BYTES_MAX: Final = 64 << 20
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class BackupFile(msgspec.Struct, frozen=True):
    """One file of records."""

    name: str
    length: Number
    records: Number
    checksum: str
    """The xxh3-128 of all its bytes."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds: the shard at one moment."""

    format: str
    version: int
    shard: Number
    first_lsn: Number
    """The first that could be read."""
    next_lsn: Number
    """Records appended to the restored shard go on here."""
    truncated_lsn: Number
    required_lsn: Number
    holder: Number
    tso: Number
    records: Number
    files: tuple[BackupFile, ...] = ()
    checksum: str = ""
    """Of the manifest with this field empty."""

    @property
    def id(self) -> int:
        """Tells backups apart."""
        return int(self.checksum[:16], 16) >> 2


def sealed(manifest: Manifest) -> Manifest:
    """With its checksum."""
    bare = msgspec.structs.replace(manifest, checksum="")
    checksum = xxhash.xxh3_128_hexdigest(msgspec.json.encode(bare))
    return msgspec.structs.replace(manifest, checksum=checksum)


def encode_chunk(body: bytes) -> bytes:
    return CHUNK.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body


def damaged(path: str, what: str) -> StoreDamaged:
    return StoreDamaged(f"{path} is damaged: {what}; use another backup")


def disk_error(path: str, error: OSError) -> RaftwoodError:
    """What a disk said, as an error of ours."""
    if error.errno in _NO_ROOM:
        return DiskFull(f"no room for {path}: free some, and begin anew in an empty folder")
    return StoreError(f"cannot use {path}: {error}")


async def read_manifest(files: Files, folder: str) -> Manifest:
    """The manifest of a folder, checked; its files are not."""
    path = f"{folder}/{MANIFEST}"
    try:
        (length,) = await perform(files, Size(path))
        if length is None:
            raise StoreDamaged(
                f"there is no {path}: this is no backup, or one that was interrupted; make another"
            )
        (data,) = await perform(files, Read(path, 0, min(length, MANIFEST_BYTES_MAX)))
    except OSError as error:
        raise disk_error(path, error) from error
    try:
        head = msgspec.json.decode(data, type=dict[str, object])
        if head.get("format") == FORMAT and head.get("version") != VERSION:
            raise UnsupportedVersion(
                f"{path} is of version {head.get('version')}, this program reads {VERSION}: use a "
                "newer program"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise damaged(path, "it cannot be read") from error
    if manifest.format != FORMAT or sealed(manifest) != manifest:
        raise damaged(path, "its checksum does not fit")
    names = [f"records-{number:05d}.rwlb" for number in range(1, len(manifest.files) + 1)]
    if names != [file.name for file in manifest.files]:
        raise damaged(path, "it names files that are none of a backup")
    return manifest


async def read_chunks(files: Files, folder: str, file: BackupFile) -> AsyncIterator[list[Record]]:
    """The records of one file, checked chunk by chunk and at the end as a whole."""
    path = f"{folder}/{file.name}"
    digest = xxhash.xxh3_128()
    offset = records = 0
    head = await _read(files, path, offset, len(FILE_HEAD))
    if head != FILE_HEAD:
        raise damaged(path, "it does not begin as a file of records does")
    digest.update(head)
    offset += len(head)
    while offset < file.length:
        head = await _read(files, path, offset, CHUNK.size)
        length, checksum = CHUNK.unpack(head) if len(head) == CHUNK.size else (0, 0)
        if not 0 < length <= CHUNK_BYTES_MAX:
            raise damaged(path, f"there is no chunk at byte {offset}")
        body = await _read(files, path, offset + CHUNK.size, length)
        if xxhash.xxh3_64_intdigest(body) != checksum:
            raise damaged(path, f"the checksum of the chunk at byte {offset} does not fit")
        digest.update(head)
        digest.update(body)
        try:
            found, _ = decode_records(body)
        except ProtocolError as error:
            raise damaged(path, f"the chunk at byte {offset} holds no records") from error
        offset += CHUNK.size + length
        records += len(found)
        yield found
    is_longer = bool(await _read(files, path, offset, 1))
    if is_longer or offset != file.length or digest.hexdigest() != file.checksum:
        raise damaged(path, "it is not the file that the manifest tells of")
    if records != file.records:
        raise damaged(path, f"it has {records} records, not {file.records}")


async def _read(files: Files, path: str, offset: int, length: int) -> bytes:
    try:
        (data,) = await perform(files, Read(path, offset, length))
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from error
    return bytes(data)
