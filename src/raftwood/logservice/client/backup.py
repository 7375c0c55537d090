"""Backing a shard up: all records that can be read at one moment, into an empty folder."""

from collections.abc import Callable
from typing import Final

import msgspec
import xxhash

from raftwood.base.errors import AlreadyExists, Conflict, InternalError
from raftwood.base.files import (
    Close,
    DataSync,
    Files,
    ListDirectory,
    MakeDirectory,
    Open,
    Rename,
    SyncDirectory,
    Write,
    perform,
)
from raftwood.logservice.client.backup_format import (
    FILE_HEAD,
    FORMAT,
    MANIFEST,
    VERSION,
    BackupFile,
    Manifest,
    disk_error,
    encode_chunk,
    sealed,
)
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnTruncated
from raftwood.logservice.records import Record
from raftwood.logservice.wire import encode_records

READ_BYTES: Final = 4 << 20
FILE_BYTES: Final = 256 << 20
"""A file that is larger is followed by another."""

Told = Callable[[int, int], None]
"""Is told how many records are done, and the LSN that is next."""


async def back_up(
    client: AsyncLogClient,
    files: Files,
    folder: str,
    *,
    told: Told = lambda _records, _lsn: None,
    file_bytes: int = FILE_BYTES,
) -> Manifest:
    """Write the shard as it is now into a folder that is empty or does not exist.

    The shard goes on meanwhile. Where it is truncated meanwhile past what was not read yet, that
    is a `Conflict`; an unfinished backup has no manifest, and is refused when it is restored.
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
        Manifest(
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
    """The files of one backup, one after the other."""

    def __init__(self, files: Files, folder: str, file_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._file_bytes = file_bytes
        self._done: list[BackupFile] = []
        self._length = 0
        """Of the file that is open; 0 where none is."""
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
            BackupFile(self._name, self._length, self._file_records, self._digest.hexdigest())
        )
        self._length = self._file_records = 0
        self._digest = xxhash.xxh3_128()

    async def finish(self) -> list[BackupFile]:
        if self._length:
            await self._end_file()
        return self._done

    async def write_manifest(self, manifest: Manifest) -> None:
        """Last of all, and whole or not at all: with it the backup is one."""
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
