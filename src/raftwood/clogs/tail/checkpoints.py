"""Checkpoints of followed files: identity, stored offset, and batches that may have been sent.

An offset alone cannot ship lines once. Moved before the ack, it loses a batch in a crash (planted
bug "an offset that moves before the ack"); moved after it, it ships one twice. So a batch's name
and range are durable before it is sent, as an intent (planted bug "an intent that is not awaited").
After a crash the same bytes are made into the same batch under the same name, which receivers know
if they have it (planted bug "a resumed batch under a new name").

`FileCheckpoints` keeps them in a segment log: a group for each file, its state the latest
checkpoint. Group 0 says that a tailer has run here before, so files that are there when it first
runs are recognized; its state has the rules that batches under way are made by.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
import xxhash

from raftwood.base.compression import Codec
from raftwood.base.errors import NotFound
from raftwood.base.files import Buffer
from raftwood.base.versions import decode_versioned
from raftwood.clogs.tail.settings import LineRules
from raftwood.disk.segment_log import DropGroup, LogSettings, Record, SegmentLog, SetState

HEAD_BYTES: Final = 1024
"""The length of a file's beginning that shows whether it is still the same file."""
VERSION: Final = 1


class FileIdentity(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A file's identity on this machine, independent of its name."""

    device: int
    inode: int


class FoundFile(msgspec.Struct, frozen=True):
    """A file as a scan found it by a path; symbolic links are followed."""

    path: str
    identity: FileIdentity
    size: int
    mtime_ns: int
    is_matched: bool = True
    """Whether a glob matched the path; else the file was looked for by its inode."""
    target: str = ""
    """The target of a symbolic link."""


class FileLook(msgspec.Struct, frozen=True):
    """An open file as it was at one moment."""

    identity: FileIdentity
    size: int
    mtime_ns: int
    links: int
    """The number of names; 0: the file has none any more, and is gone once it is closed."""
    head: bytes = b""
    """Its first bytes, up to `HEAD_BYTES`."""
    birth_ns: int = 0
    """When it was made; 0: not asked for, or the file system does not tell."""


class FileHead(msgspec.Struct, frozen=True, array_like=True):
    """The hash of the first bytes that were read, by which the file is known again.

    Only of bytes that were read: a file that is written slowly has a longer beginning each time,
    and would be taken for another.
    """

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
    """Digest of the rules that made the batch. Other masking rules would make other bytes under the
    same name, and a receiver that has the first ones would ack the second ones unseen. So the batch
    is made again by these rules, whatever the settings say by now."""
    begins_mid_line: bool = False
    """The beginning of its first line was shipped before, as a line of its own."""
    ends_mid_line: bool = False


class FileCheckpoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The durable state of a file. All before `offset` is stored; intents follow, in order."""

    version: int = VERSION
    identity: FileIdentity
    path: str
    """The path where it was seen last."""
    folder: str
    """The folder of its target, symbolic links followed: rotation renames it there."""
    name: str
    """The name under which it is shipped."""
    home: str
    """The path that its name was made from."""
    offset: int = 0
    is_mid_line: bool = False
    cuts: int = 0
    head: FileHead = FileHead()
    intents: tuple[BatchIntent, ...] = ()
    birth_ns: int = 0


class KnownRules(msgspec.Struct, frozen=True, array_like=True):
    """The rules that batches under way are made by: the present ones and those of intents."""

    version: int
    rules: tuple[LineRules, ...]


_State = TypeVar("_State")
_encode: Final = msgspec.msgpack.Encoder().encode


def encode_checkpoint(checkpoint: FileCheckpoint) -> bytes:
    return _encode(checkpoint)


def decode_checkpoint(data: Buffer) -> FileCheckpoint:
    """`UnsupportedVersion` for one of a later program, `StoreDamaged` for what is none."""
    return _decoded(data, FileCheckpoint)


def _decoded(data: Buffer, kind: type[_State]) -> _State:
    return decode_versioned(
        data,
        kind,
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
        """Whether no tailer has worked with this state yet."""
        return _BEGUN not in self._log.groups()

    def load(self) -> dict[int, FileCheckpoint]:
        found = {}
        for number in self._log.groups():
            state = self._log.state(number)
            if number != _BEGUN and state is not None:
                found[number] = decode_checkpoint(state)
        return found

    def rules(self) -> Sequence[LineRules]:
        """Returns the rules that made batches of an earlier run; release 0.1.0 kept none."""
        state = None if self.is_new else self._log.state(_BEGUN)
        return _decoded(state, KnownRules).rules if state else ()

    async def begin(
        self, checkpoints: dict[int, FileCheckpoint], rules: Sequence[LineRules]
    ) -> None:
        """Stores where the files that are there at first are begun, and the rules for lines, which
        intents name; durable on return.

        The mark of group 0 comes last: after a crash in between, the tailer begins anew, and does
        not take the files that it had not come to for new ones.
        """
        records: list[Record] = [
            SetState(number, encode_checkpoint(each)) for number, each in checkpoints.items()
        ]
        for start in range(0, len(records), _RECORDS_PER_WRITE):
            await self._log.commit(*records[start : start + _RECORDS_PER_WRITE])
        state = _encode(KnownRules(VERSION, tuple(rules)))
        if self.is_new or self._log.state(_BEGUN) != state:
            await self._log.commit(SetState(_BEGUN, state))

    def save(self, number: int, checkpoint: FileCheckpoint) -> asyncio.Event:
        """Writes a checkpoint; the event is set once it is durable: a batch waits for that before
        it is sent.
        """
        durable = asyncio.Event()
        self._log.write((SetState(number, encode_checkpoint(checkpoint)),), durable.set)
        return durable

    def note(self, number: int, checkpoint: FileCheckpoint) -> None:
        """Writes a checkpoint that outlives this process, and is durable with the next one saved.

        For acks: one that a power cut takes back only makes its batch go again under its name.
        """
        self._log.write((SetState(number, encode_checkpoint(checkpoint)),), written=_nothing)

    def drop(self, number: int) -> None:
        try:
            self._log.write((DropGroup(number),), written=_nothing)
        except NotFound:
            return  # No checkpoint of the file was ever saved.


def _nothing() -> None: ...
