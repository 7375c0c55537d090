"""Backup of a shard to a folder, and back into a new, empty shard.

    records-00001.rwlb …    magic (4), version (1), then chunks
    chunk                   length (4), xxh3-64 of the body (8), body: records as on the wire
    manifest.json           a `LogBackupManifest`: all files with their lengths and checksums

Big-endian. The manifest is written last: a folder without one holds an interrupted backup. LSNs
without a record are not written: an LSN missing from the files is a hole.

A backup has all records that can be read at one moment. Restored records keep their LSNs. A restore
first checks the whole backup, then sends one batch after the other, each until it is answered. An
interrupted restore resumes where it stopped if it is started again on the same shard.
"""

import asyncio
import errno
import struct
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Annotated, Final

import msgspec
import xxhash

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    DiskFull,
    InternalError,
    ProtocolError,
    RaftwoodError,
    StoreDamaged,
    StoreError,
    Unavailable,
    UnsupportedVersion,
)
from raftwood.base.files import (
    Close,
    DataSync,
    Files,
    ListDirectory,
    MakeDirectory,
    Open,
    Read,
    Rename,
    Size,
    SyncDirectory,
    Write,
    perform,
)
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.client.shard_link import ShardLink
from raftwood.logservice.errors import LsnTruncated
from raftwood.logservice.records import (
    NUMBER_MAX,
    Record,
    RestoreBegin,
    RestoreFinish,
    UpdateKind,
    encode_begin,
    encode_finish,
    encode_restored,
    encode_update,
)
from raftwood.logservice.wire import (
    APPEND,
    decode_lsns,
    decode_records,
    encode_append,
    encode_records,
)
from raftwood.net.stores import Stores

FORMAT: Final = "raftwood-log-backup"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
MANIFEST_BYTES_MAX: Final = 64 << 20
FILE_HEAD: Final = b"RWLB" + bytes([VERSION])
CHUNK: Final = struct.Struct(">IQ")
CHUNK_BYTES_MAX: Final = 64 << 20
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class LogBackupFile(msgspec.Struct, frozen=True):
    """One file of records."""

    name: str
    length: Number
    records: Number
    checksum: str
    """The xxh3-128 of the whole file."""


class LogBackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds: the shard at one moment."""

    format: str
    version: int
    shard: Number
    first_lsn: Number
    """The first LSN that could be read."""
    next_lsn: Number
    """The LSN at which records appended to the restored shard begin."""
    truncated_lsn: Number
    required_lsn: Number
    holder: Number
    tso: Number
    records: Number
    files: tuple[LogBackupFile, ...] = ()
    checksum: str = ""
    """The checksum of the manifest with this field empty."""

    @property
    def id(self) -> int:
        """A number that differs between backups."""
        return int(self.checksum[:16], 16) >> 2


def sealed(manifest: LogBackupManifest) -> LogBackupManifest:
    """Returns the manifest with its checksum."""
    bare = msgspec.structs.replace(manifest, checksum="")
    checksum = xxhash.xxh3_128_hexdigest(msgspec.json.encode(bare))
    return msgspec.structs.replace(manifest, checksum=checksum)


def encode_chunk(body: bytes) -> bytes:
    return CHUNK.pack(len(body), xxhash.xxh3_64_intdigest(body)) + body


def damaged(path: str, what: str) -> StoreDamaged:
    return StoreDamaged(f"{path} is damaged: {what}; use another backup")


def disk_error(path: str, error: OSError) -> RaftwoodError:
    """Turns an error of the disk into a `RaftwoodError`."""
    if error.errno in _NO_ROOM:
        return DiskFull(f"no room for {path}: free some, and begin anew in an empty folder")
    return StoreError(f"cannot use {path}: {error}")


async def read_manifest(files: Files, folder: str) -> LogBackupManifest:
    """Reads the manifest of a folder and checks it, but not its files."""
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
        manifest = msgspec.json.decode(data, type=LogBackupManifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise damaged(path, "it cannot be read") from error
    if manifest.format != FORMAT or sealed(manifest) != manifest:
        raise damaged(path, "its checksum does not fit")
    names = [f"records-{number:05d}.rwlb" for number in range(1, len(manifest.files) + 1)]
    if names != [file.name for file in manifest.files]:
        raise damaged(path, "it names files that are none of a backup")
    return manifest


async def read_chunks(
    files: Files, folder: str, file: LogBackupFile
) -> AsyncIterator[list[Record]]:
    """Yields the records of one file; checks each chunk, and the whole file at the end."""
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


READ_BYTES: Final = 4 << 20
FILE_BYTES: Final = 256 << 20
"""A file beyond this size is followed by another."""

OnBackupProgress = Callable[[int, int], None]
"""Receives the number of records done and the next LSN."""


async def back_up(
    client: AsyncLogClient,
    files: Files,
    folder: str,
    *,
    told: OnBackupProgress = lambda _records, _lsn: None,
    file_bytes: int = FILE_BYTES,
) -> LogBackupManifest:
    """Writes the shard as it is now into a folder that is empty or does not exist.

    The shard keeps serving. Raises `Conflict` if a truncation removes records that were not read
    yet. An unfinished backup has no manifest, and `restore` refuses it.
    """
    try:
        await perform(files, MakeDirectory(folder))
        (names,) = await perform(files, ListDirectory(folder))
    except OSError as error:
        raise disk_error(folder, error) from error
    if names:
        raise AlreadyExists(f"{folder} is not empty: give another folder, or empty it first")
    log = (await client.info()).log
    writer = _Writer(files, folder, file_bytes)
    lsn = log.first_lsn
    try:
        while lsn < log.next_lsn:
            records, following = await client.read(lsn, bytes_max=READ_BYTES)
            if following <= lsn:
                raise InternalError(f"nothing can be read at LSN {lsn}, below {log.next_lsn}")
            lsn = min(following, log.next_lsn)
            await writer.write([each for each in records if each.lsn < log.next_lsn], lsn)
            told(writer.records, lsn)
    except LsnTruncated as error:
        raise Conflict(
            f"the shard was truncated up to {error.first - 1} while it was backed up: begin anew "
            "in an empty folder, with a required LSN if it is truncated often"
        ) from error
    manifest = sealed(
        LogBackupManifest(
            format=FORMAT,
            version=VERSION,
            shard=client.config.shard,
            first_lsn=log.first_lsn,
            next_lsn=log.next_lsn,
            truncated_lsn=log.truncated_lsn,
            required_lsn=log.required_lsn,
            holder=log.holder,
            tso=log.tso,
            records=writer.records,
            files=tuple(await writer.finish()),
        )
    )
    await writer.write_manifest(manifest)
    return manifest


class _Writer:
    """Writes the files of one backup, one after the other."""

    def __init__(self, files: Files, folder: str, file_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._file_bytes = file_bytes
        self._done: list[LogBackupFile] = []
        self._length = 0
        """The length of the open file; 0 if none is open."""
        self._file_records = 0
        self._digest = xxhash.xxh3_128()
        self.records = 0

    @property
    def _name(self) -> str:
        return f"records-{len(self._done) + 1:05d}.rwlb"

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._name}"

    async def write(self, records: list[Record], next_lsn: int) -> None:
        if not records:
            return
        pieces = encode_records(
            next_lsn,
            [each.lsn for each in records],
            bytes(each.kind for each in records),
            [each.data for each in records],
        )
        data = encode_chunk(b"".join(pieces))
        path = self._path
        try:
            if not self._length:
                data = FILE_HEAD + data
                await perform(self._files, Open(path, create=True))
            await perform(self._files, Write(path, self._length, [data]))
        except OSError as error:
            raise disk_error(path, error) from error
        self._digest.update(data)
        self._length += len(data)
        self._file_records += len(records)
        self.records += len(records)
        if self._length >= self._file_bytes:
            await self._end_file()

    async def _end_file(self) -> None:
        try:
            await perform(self._files, DataSync(self._path), Close(self._path))
        except OSError as error:
            raise disk_error(self._path, error) from error
        self._done.append(
            LogBackupFile(self._name, self._length, self._file_records, self._digest.hexdigest())
        )
        self._length = self._file_records = 0
        self._digest = xxhash.xxh3_128()

    async def finish(self) -> list[LogBackupFile]:
        if self._length:
            await self._end_file()
        return self._done

    async def write_manifest(self, manifest: LogBackupManifest) -> None:
        """Writes the manifest last, all or nothing: it makes the backup complete."""
        path = f"{self._folder}/{MANIFEST}"
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        try:
            await perform(
                self._files,
                Open(f"{path}.new", create=True),
                Write(f"{path}.new", 0, [text]),
                DataSync(f"{path}.new"),
                Close(f"{path}.new"),
                SyncDirectory(self._folder),
                Rename(f"{path}.new", path),
                SyncDirectory(self._folder),
            )
        except OSError as error:
            raise disk_error(path, error) from error


BATCH_BYTES: Final = 1 << 20
BATCH_ENTRIES: Final = 4_096
FILL_MAX: Final = 64
"""Holes up to this many LSNs are filled with entries; a larger one is skipped and remembered."""
TIMEOUT_MS: Final = 60_000
ATTEMPTS_MAX: Final = 100


async def check_backup(files: Files, folder: str) -> LogBackupManifest:
    """Reads a whole backup; `StoreDamaged` names the bad file."""
    manifest = await read_manifest(files, folder)
    records = 0
    async for _, found in _records(files, folder, manifest):
        records += len(found)
    if records != manifest.records:
        raise damaged(folder, f"it has {records} records, not {manifest.records}")
    return manifest


async def restore(
    stores: Stores,
    shard: int,
    files: Files,
    folder: str,
    manifest: LogBackupManifest,
    *,
    told: OnBackupProgress = lambda _records, _lsn: None,
) -> None:
    """Fills an empty shard from a backup, which then serves; `Conflict` if it is not empty."""
    link = ShardLink(stores, shard)
    try:
        begin = RestoreBegin(
            backup=manifest.id,
            truncated_lsn=manifest.truncated_lsn,
            required_lsn=manifest.required_lsn,
            tso=manifest.tso,
            holder=manifest.holder,
        )
        last_lsn = await _send(link, [encode_begin(begin)])
        done = 0
        async for previous_lsn, records in _records(files, folder, manifest):
            for batch in _batches(records, previous_lsn, last_lsn):
                await _send(link, batch)
            done += len(records)
            told(done, records[-1].lsn + 1)
        finish = RestoreFinish(
            backup=manifest.id, next_lsn=manifest.next_lsn, records=manifest.records
        )
        await _send(link, [encode_finish(finish)])
    finally:
        await link.close()


async def _records(
    files: Files, folder: str, manifest: LogBackupManifest
) -> AsyncIterator[tuple[int, list[Record]]]:
    """Yields the records of each chunk with the LSN before its first; checks their order."""
    last = manifest.first_lsn - 1
    for file in manifest.files:
        async for records in read_chunks(files, folder, file):
            before = last
            for record in records:
                if not last < record.lsn < manifest.next_lsn:
                    raise damaged(f"{folder}/{file.name}", f"LSN {record.lsn} stands after {last}")
                last = record.lsn
            if records:
                yield before, records


def _batches(records: list[Record], previous_lsn: int, done_lsn: int) -> list[list[bytes]]:
    """Makes entries for the records not yet restored, and for small holes between them."""
    batches: list[list[bytes]] = [[]]
    size = 0
    for record in records:
        hole = record.lsn - previous_lsn - 1
        entries = [
            encode_update(UpdateKind.FILL, lsn)
            for lsn in range(previous_lsn + 1, record.lsn if hole <= FILL_MAX else 0)
        ]
        previous_lsn = record.lsn
        if record.lsn <= done_lsn:
            continue
        entries.append(encode_restored(record.data, record.lsn))
        added = sum(map(len, entries))
        if batches[-1] and (
            size + added > BATCH_BYTES or len(batches[-1]) + len(entries) > BATCH_ENTRIES
        ):
            batches.append([])
            size = 0
        batches[-1] += entries
        size += added
    return [batch for batch in batches if batch]


async def _send(link: ShardLink, entries: list[bytes]) -> int:
    """Sends a batch until all of it is answered; returns the last answer."""
    request = encode_append(link.shard, entries)
    for pause_s in islice(link.stores.pauses_s(), ATTEMPTS_MAX):
        answer = await link.ask_raw(APPEND, request, timeout_ms=TIMEOUT_MS)
        results = decode_lsns(answer, len(entries))
        errors = [each for each in results if not isinstance(each, int)]
        if not errors:
            last = results[-1]
            assert isinstance(last, int)
            return last
        for error in errors:
            if not isinstance(error, Unavailable):
                raise error
        link.note(errors[0], asked=link.guess())
        await asyncio.sleep(pause_s)
    raise link.silence(None)
