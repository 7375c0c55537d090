"""Checkpoints of followed files: which file it is, how far it is stored, which batches may be sent.

`FileCheckpoints` keeps them in a segment log: a group for each file, its state the latest
checkpoint. Group 0 says that a tailer has run here before: so files that are there when it first
runs can be told from later ones.
"""

import asyncio
from typing import Final

import msgspec
import xxhash

from raftwood.base.compression import Codec
from raftwood.base.errors import NotFound
from raftwood.base.files import Buffer
from raftwood.base.versions import decode_versioned
from raftwood.disk.segment_log import DropGroup, LogSettings, Record, SegmentLog, SetState

HEAD_BYTES: Final = 1024
"""The beginning of a file that tells whether it still is the same."""
VERSION: Final = 1


class FileIdentity(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which file it is on this machine, whatever its name."""

    device: int
    inode: int


class FoundFile(msgspec.Struct, frozen=True):
    """A file as a scan found it by a path; symbolic links are followed."""

    path: str
    identity: FileIdentity
    size: int
    mtime_ns: int
    is_matched: bool = True
    """By a glob; else it was looked for, as it once was."""
    target: str = ""
    """Where a symbolic link leads to."""


class FileLook(msgspec.Struct, frozen=True):
    """An open file as it was at one moment."""

    identity: FileIdentity
    size: int
    mtime_ns: int
    links: int
    """0: it has no name any more, and is gone once it is closed."""
    head: bytes = b""
    """Its first bytes, up to `HEAD_BYTES`."""
    birth_ns: int = 0
    """When it was made; 0 where nobody asked, or the file system does not tell."""


class FileHead(msgspec.Struct, frozen=True, array_like=True):
    """Of the bytes that were read, the first ones: as much as is needed to know the file again."""

    length: int = 0
    hash: int = 0

    @classmethod
    def of(cls, data: Buffer, length: int) -> "FileHead":
        return cls(length, xxhash.xxh3_64_intdigest(data[:length]))

    def begins(self, data: Buffer) -> bool:
        return len(data) >= self.length and (
            not self.length or xxhash.xxh3_64_intdigest(data[: self.length]) == self.hash
        )


class BatchIntent(msgspec.Struct, frozen=True, array_like=True):
    """A batch that may have been sent: enough to make it again and send it under its old name."""

    producer: bytes
    sequence: int
    begin: int
    end: int
    checksum: int
    """XXH3-64 of the file's bytes from begin to end."""
    cuts: int
    """How often the file had been cut when they were read."""
    codec: Codec
    rules: int
    """Digest of the rules that made it; others make another batch, under the same name."""
    begins_mid_line: bool = False
    """What is before it in its line was shipped as a line of its own."""
    ends_mid_line: bool = False


class FileCheckpoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What is durable about a file. All before `offset` is stored; intents follow, in order."""

    version: int = VERSION
    identity: FileIdentity
    path: str
    """Where it was seen last."""
    folder: str
    """Where its target is, symbolic links followed: to be found there under another name."""
    name: str
    """What it is shipped as."""
    home: str
    """The path that its name is of."""
    offset: int = 0
    is_mid_line: bool = False
    cuts: int = 0
    head: FileHead = FileHead()
    intents: tuple[BatchIntent, ...] = ()
    birth_ns: int = 0


_encode: Final = msgspec.msgpack.Encoder().encode


def encode_checkpoint(checkpoint: FileCheckpoint) -> bytes:
    return _encode(checkpoint)


def decode_checkpoint(data: Buffer) -> FileCheckpoint:
    """`UnsupportedVersion` for one of a later program, `StoreDamaged` for what is none."""
    return decode_versioned(
        data,
        FileCheckpoint,
        version=VERSION,
        name="a file's state",
        remedy="remove the state folder; what was shipped of the files is then shipped again",
    )


STATE_SETTINGS: Final = LogSettings(
    segment_bytes=4 << 20, flush_bytes_max=1 << 20, pending_bytes_max=16 << 20, cache_bytes_max=0
)
_BEGUN: Final = 0
_RECORDS_PER_WRITE: Final = 200


class FileCheckpoints:
    """All files' checkpoints. Writes raise `DiskFull` or `Overloaded`, with nothing written."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    @property
    def is_new(self) -> bool:
        """No tailer has been at work with this state."""
        return _BEGUN not in self._log.groups()

    def load(self) -> dict[int, FileCheckpoint]:
        found = {}
        for number in self._log.groups():
            state = self._log.state(number)
            if number != _BEGUN and state is not None:
                found[number] = decode_checkpoint(state)
        return found

    async def begin(self, checkpoints: dict[int, FileCheckpoint]) -> None:
        """Durable at once: where the files that are there at first are begun."""
        records: list[Record] = [
            SetState(number, encode_checkpoint(each)) for number, each in checkpoints.items()
        ]
        for start in range(0, len(records), _RECORDS_PER_WRITE):
            await self._log.commit(*records[start : start + _RECORDS_PER_WRITE])
        await self._log.commit(SetState(_BEGUN, b""))

    def save(self, number: int, checkpoint: FileCheckpoint) -> asyncio.Event:
        """Write a checkpoint; the event is set once it is durable."""
        durable = asyncio.Event()
        self._log.write((SetState(number, encode_checkpoint(checkpoint)),), durable.set)
        return durable

    def note(self, number: int, checkpoint: FileCheckpoint) -> None:
        """Write a checkpoint that outlives this process, and is durable with the next one saved."""
        self._log.write((SetState(number, encode_checkpoint(checkpoint)),), written=_nothing)

    def drop(self, number: int) -> None:
        try:
            self._log.write((DropGroup(number),), written=_nothing)
        except NotFound:
            return  # nothing of it was ever saved


def _nothing() -> None: ...
