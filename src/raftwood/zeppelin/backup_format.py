"""Files of a backup of a table: pages of pairs, and a manifest that is written last.

    manifest.json                           a `TableManifest`: all partitions, files, a checksum
    partitions/00003.json                   a `PartitionBackup`: how far that partition is
    data/00003-CHECKPOINT-00001.rwzb        a file of pages, as follows

    RWZB, version u16, 0 u16, partition u32, number of the file u32
    block …                                 packed bytes u32, raw bytes u32, a page packed by zstd
    checksum u64                            XXH3-64 of all before it

Little endian; `zeppelin/pages` says what a page is. A file has a bounded size and is written as a
whole. A folder without a manifest holds an interrupted backup, which can be resumed but not
restored.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import xxhash

from raftwood.base.compression import Codec, compress, decompress
from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    ProtocolError,
    StoreDamaged,
    StoreError,
    UnsupportedVersion,
)
from raftwood.base.file_systems import file_system_of, folder_uri
from raftwood.zeppelin.client.checkpoints import CheckpointAbout
from raftwood.zeppelin.pages import Page
from raftwood.zeppelin.slots import SLOTS

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

FORMAT: Final = "raftwood-zeppelin-backup"
VERSION: Final = 1
MANIFEST: Final = "manifest.json"
PAGE_RAW_BYTES_MAX: Final = 64 << 20
"""Far above the size of any page that a node makes."""
MAGIC: Final = b"RWZB"
FILE_HEAD: Final = Struct("<4sHHII")
BLOCK_HEAD: Final = Struct("<II")
CHECKSUM: Final = Struct("<Q")


class TableBackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """One complete file of pages."""

    name: str
    bytes: int
    checksum: str
    """XXH3-64 of all its bytes."""
    pairs: int


class PartitionBackup(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as of its checkpoint's moment."""

    about: CheckpointAbout
    files: tuple[TableBackupFile, ...] = ()
    raw_bytes: int = 0
    """Bytes of all pages before they were packed."""
    cursor: bytes = b""
    """Where to resume reading the checkpoint; only while unfinished."""
    is_finished: bool = False

    @property
    def pairs(self) -> int:
        return sum(file.pairs for file in self.files)

    @property
    def slots(self) -> range:
        return range(self.about.first_slot, self.about.last_slot + 1)


class TableManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A complete backup; its partitions cover each slot exactly once."""

    format: str = FORMAT
    version: int = VERSION
    partitions: tuple[PartitionBackup, ...]
    pairs: int
    checksum: str = ""
    """Checksum of the manifest with this field empty."""

    @property
    def files(self) -> list[TableBackupFile]:
        return [file for each in self.partitions for file in each.files]


def partition_name(number: int) -> str:
    return f"partitions/{number:05d}.json"


def file_name(about: CheckpointAbout, number: int) -> str:
    """Returns a file's name, which differs between two checkpoints of a partition."""
    return f"data/{about.partition:05d}-{about.id}-{number:05d}.rwzb"


def check_names(partition: PartitionBackup, place: str) -> None:
    """Checks that the files are inside the backup: others may write there, and files get
    removed.
    """
    about = partition.about
    names = [file_name(about, number) for number in range(1, len(partition.files) + 1)]
    if not about.id.isalnum() or names != [file.name for file in partition.files]:
        raise damaged(place, f"partition {about.partition} has files of other names")


def sealed(manifest: TableManifest) -> TableManifest:
    """Returns the manifest with its checksum."""
    bare = msgspec.structs.replace(manifest, checksum="")
    checksum = xxhash.xxh3_64_hexdigest(msgspec.json.encode(bare))
    return msgspec.structs.replace(manifest, checksum=checksum)


def covers_all_slots(partitions: tuple[PartitionBackup, ...]) -> bool:
    """Whether the partitions cover each slot exactly once."""
    ranges = sorted((each.about.first_slot, each.about.last_slot) for each in partitions)
    following = 0
    for first, last in ranges:
        if first != following or last < first:
            return False
        following = last + 1
    return following == SLOTS


def decode_manifest(data: bytes, place: str) -> TableManifest:
    try:
        head = msgspec.json.decode(data, type=dict[str, object])
        if head.get("format") == FORMAT and head.get("version") != VERSION:
            raise UnsupportedVersion(
                f"{place} is of version {head.get('version')}, this program reads {VERSION}: use "
                "a newer program"
            )
        manifest = msgspec.json.decode(data, type=TableManifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise damaged(place, "it cannot be read") from error
    if manifest.format != FORMAT or sealed(manifest) != manifest:
        raise damaged(place, "its checksum does not fit")
    if not covers_all_slots(manifest.partitions):
        raise damaged(place, "its partitions do not have each slot once")
    for each in manifest.partitions:
        check_names(each, place)
    return manifest


def damaged(place: str, what: str) -> StoreDamaged:
    return StoreDamaged(f"{place} is damaged: {what}; use another backup")


def packed(page: Page) -> bytes:
    """Returns a page as a block."""
    body = compress(page.data, Codec.ZSTD)
    return BLOCK_HEAD.pack(len(body), len(page.data)) + body


def encode_file(partition: int, number: int, blocks: list[bytes]) -> bytes:
    body = b"".join((FILE_HEAD.pack(MAGIC, VERSION, 0, partition, number), *blocks))
    return body + CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def checksum_of(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def check_file(data: bytes, file: TableBackupFile, place: str) -> None:
    """Raises if a file is not the one that the manifest names."""
    if len(data) != file.bytes:
        raise damaged(place, f"it has {len(data)} bytes, not {file.bytes}")
    if checksum_of(data) != file.checksum:
        raise damaged(place, "its checksum is another one than the manifest says")


def pages_in(data: bytes, place: str) -> Iterator[Page]:
    """Yields the pages of a file, each one checked."""
    least = FILE_HEAD.size + CHECKSUM.size
    if len(data) < least or data[:4] != MAGIC:
        raise damaged(place, "it does not begin as a file of pages does")
    _, version, *_ = FILE_HEAD.unpack_from(data)
    if version != VERSION:
        raise UnsupportedVersion(
            f"{place} is of version {version}, this program reads {VERSION}: use a newer program"
        )
    end = len(data) - CHECKSUM.size
    view = memoryview(data)
    if CHECKSUM.unpack_from(data, end)[0] != xxhash.xxh3_64_intdigest(view[:end]):
        raise damaged(place, "its checksum does not fit")
    offset = FILE_HEAD.size
    while offset < end:
        if offset + BLOCK_HEAD.size > end:
            raise damaged(place, "it is cut off")
        packed_bytes, raw_bytes = BLOCK_HEAD.unpack_from(data, offset)
        offset += BLOCK_HEAD.size
        if offset + packed_bytes > end or raw_bytes > PAGE_RAW_BYTES_MAX:
            raise damaged(place, "a block is larger than the file")
        yield _unpacked(view[offset : offset + packed_bytes], raw_bytes, place)
        offset += packed_bytes


def _unpacked(body: memoryview, raw_bytes: int, place: str) -> Page:
    try:
        return Page.decoded(bytes(decompress(body, Codec.ZSTD, raw_bytes=raw_bytes)))
    except (InvalidInput, ProtocolError) as error:
        raise damaged(place, f"a page cannot be read: {error}") from error


# `BackupFolder`: files that are written as a whole, in a folder or an object store.
#
# Arrow interprets the URI: `file:`, `s3://`, `gs://`, `abfs://`, `hdfs://`. A file appears with all
# its bytes or not at all: on a disk by renaming it, in object stores by their own rules.

Result = TypeVar("Result")


class BackupFolder:
    """The files of a backup. Calls run in a thread, because they wait for disks and networks."""

    def __init__(self, given: str) -> None:
        system, path = file_system_of(given)
        self._system: FileSystem = system
        self._path = path.rstrip("/")
        self.uri = folder_uri(given)

    def place(self, name: str) -> str:
        """Returns a file's URI, for messages."""
        return f"{self.uri}/{name}"

    async def write(self, name: str, data: bytes) -> None:
        """Writes a file, durable on return; replaces an older one of this name."""
        await self._blocking(name, self._write, data)

    async def read(self, name: str) -> bytes:
        """Returns all bytes; raises `NotFound` if there is no such file."""
        found: bytes = await self._blocking(name, self._read)
        return found

    async def find(self, name: str) -> bytes | None:
        try:
            return await self.read(name)
        except NotFound:
            return None

    async def delete(self, name: str) -> None:
        """Deletes a file if it exists."""
        try:
            await self._blocking(name, self._system.delete_file)
        except NotFound:
            return

    async def beside(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Runs the CPU work of a file, such as packing, off the loop."""
        return await asyncio.to_thread(call, *arguments)

    async def _blocking(self, name: str, call: Any, *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(call, f"{self._path}/{name}", *arguments)
        except FileNotFoundError as error:
            raise NotFound(f"{self.place(name)} is not there") from error
        except OSError as error:
            raise StoreError(f"cannot use {self.place(name)}: {error}") from error

    def _write(self, path: str, data: bytes) -> None:
        system = self._system
        is_local = system.type_name == "local"
        folder = path.rpartition("/")[0]
        system.create_dir(folder)
        target = f"{path}.new" if is_local else path
        with system.open_output_stream(target) as stream:
            stream.write(data)
        if is_local:
            _sync(target)
            system.move(target, path)
            _sync(folder)

    def _read(self, path: str) -> bytes:
        with self._system.open_input_file(path) as file:
            data: bytes = file.read()
            return data


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# `ByteRate`: a bound on bytes per second, which all callers share.


class ByteRate:
    """Limits bytes per second; without a rate no call waits."""

    def __init__(self, bytes_per_s: int | None) -> None:
        if bytes_per_s is not None and bytes_per_s < 1:
            raise InvalidInput(f"a rate of {bytes_per_s} bytes a second: give 1 or more")
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Waits until all bytes taken so far are within the rate."""
        if self._bytes_per_s is not None:
            now = asyncio.get_running_loop().time()
            self._free_at = max(self._free_at, now) + size / self._bytes_per_s
            await asyncio.sleep(self._free_at - now)
