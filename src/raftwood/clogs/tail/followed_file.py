"""`FollowedFile`: how far a file is read, its batches under way, and what happened to it.

No I/O and no clock. Its state is its checkpoint, and what a restart finds out again. The tailer's
counters and status stand here as well.
"""

from collections import deque
from collections.abc import Callable

import msgspec
import xxhash

from raftwood.base.compression import Codec
from raftwood.base.errors import InvariantViolated
from raftwood.base.files import Buffer
from raftwood.clogs.tail.batch_maker import Forced
from raftwood.clogs.tail.checkpoints import (
    HEAD_BYTES,
    BatchIntent,
    FileCheckpoint,
    FileHead,
    FileIdentity,
    FileLook,
    FoundFile,
)


class TailCounters(msgspec.Struct):
    """Counters of this life of the tailer; they only grow."""

    lines: int = 0
    """Lines stored."""
    bytes: int = 0
    """Bytes of files stored."""
    batches: int = 0
    resumed_batches: int = 0
    """Batches of an earlier life, sent again under their old names."""
    unknown_batches: int = 0
    """Batches of an earlier life that cannot be made again: they may be stored or not."""
    unknown_bytes: int = 0
    cuts: int = 0
    """Files that were cut, and begun again."""
    cut_bytes: int = 0
    """Bytes known to have been in files when they were cut or went away, and never read."""
    missed_files: int = 0
    """Files that were made and deleted before they could be opened: their sizes are unknown."""
    cut_lines: int = 0
    """Cuts that were made in lines that are too long."""
    retries: int = 0
    """Deliveries that failed and were repeated."""
    troubles: int = 0
    """Failures to open or read files, or to write the state."""
    refused_files: int = 0


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one file."""

    name: str
    path: str
    size: int
    offset: int
    """The file is stored up to here."""
    behind_bytes: int
    lines: int
    bytes: int
    problem: str = ""


class TailStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a tailer."""

    files: int
    open_files: int
    missing_files: int
    """Files of an earlier life, not found again so far."""
    behind_bytes: int
    scanned_because: str = ""
    """Why changes are looked for every `scan_ms`, if folders cannot be watched."""
    counters: TailCounters
    file_list: list[FileStatus]
    """Those that are furthest behind first; incomplete if there are many."""


class FileCounters(msgspec.Struct):
    """What was stored of a file in this life of the tailer."""

    lines: int = 0
    bytes: int = 0
    batches: int = 0


class Checked(msgspec.Struct, frozen=True):
    """The state of a file from which nothing more could be taken."""

    place: tuple[int, int, int]
    """The place of reading, and the file's size and time."""
    force: Forced


class FollowedFile:
    """A followed file. Its number is that of its state, and is unique in one life."""

    def __init__(
        self, number: int, checkpoint: FileCheckpoint, producer: bytes, *, now_ms: int
    ) -> None:
        self.number = number
        self.producer = producer
        self.identity: FileIdentity = checkpoint.identity
        self.path = checkpoint.path
        self.folder = checkpoint.folder
        self.name = checkpoint.name
        self.next_name = checkpoint.name
        """The name to ship it under once nothing of it is under way."""
        self.home = checkpoint.home
        self.origin = ""
        """The path, matched by a glob, from which the file at its path was renamed."""
        self.offset = checkpoint.offset
        self.is_mid_line = checkpoint.is_mid_line
        self.cuts = checkpoint.cuts
        self.birth_ns = checkpoint.birth_ns
        self.head: FileHead = checkpoint.head
        self.intents: deque[BatchIntent] = deque(checkpoint.intents)
        """Intents that are durable or about to be, and not acked."""
        self.resuming: deque[BatchIntent] = deque(checkpoint.intents)
        """Intents of an earlier life whose batches are to be made again."""
        self.sequence = 0

        self.read_to = self.offset
        """The file is made into batches up to here."""
        self.reads_mid_line = self.is_mid_line
        for intent in self.intents:
            if intent.cuts == self.cuts:
                self.read_to, self.reads_mid_line = intent.end, intent.ends_mid_line

        self.size = self.read_to
        self.peak_size = self.size
        """The largest size that was seen before the file shrank."""
        self.has_shrunk = False
        """It was seen to shrink, and is not begun again so far."""
        self.mtime_ns = 0
        self.links = 1
        self.grown_ms = now_ms
        """When it was last seen to have grown."""
        self.checked: Checked | None = None
        self.is_held = False
        """Its descriptor is open."""
        self.is_matched = False
        """Whether the last scan found it by a glob."""
        self.was_seen = False
        """It was seen in this life."""
        self.left_ms: int | None = None
        """Since when it is no longer at its home."""
        self.caught_up_ms: int | None = None
        """When it was first read to its end after that."""
        self.is_overdue = False
        """It lost its name long ago and still grows: its successor waits no longer."""
        self.rested_ms: int | None = now_ms
        """Since when it is missing, or needs no attention; None: it is followed."""
        self.is_forgotten = False
        self.served = 0
        """When a batch was last made of it, counted in batches of all files."""
        self.problem = ""
        """Why it is not read at the moment."""
        self.refusal = ""
        """Why its batch under way is not stored so far."""
        self.failures = 0
        """Failures in a row."""
        self.retry_at_ms = 0
        self.counters = FileCounters()

    @property
    def is_at_end(self) -> bool:
        """Whether all that is known to be in it is stored."""
        return self.read_to == self.size and not self.intents

    @property
    def behind_bytes(self) -> int:
        return max(0, self.size - self.offset)

    def found(self, found: FoundFile, *, now_ms: int) -> bool:
        """Takes in a scan; returns whether its size or time changed."""
        self.path, self.was_seen, self.is_matched = found.path, True, found.is_matched
        return self.looked(found.size, found.mtime_ns, now_ms=now_ms)

    def looked(self, size: int, mtime_ns: int, *, now_ms: int) -> bool:
        """Takes in its size and time; returns whether they changed."""
        if size == self.size and mtime_ns == self.mtime_ns:
            return False
        self.has_shrunk |= size < self.size
        self.size, self.mtime_ns, self.grown_ms = size, mtime_ns, now_ms
        if not self.has_shrunk:
            self.peak_size = max(self.peak_size, size)
        return True

    def stay(self) -> None:
        """It is where its name says."""
        self.left_ms = self.caught_up_ms = None
        self.is_overdue = False

    def nothing_taken(self, force: Forced) -> None:
        self.checked = Checked((self.read_to, self.size, self.mtime_ns), force)

    def head_after(self, data: Buffer, taken: int, look: FileLook) -> FileHead | None:
        """Returns the head once `data` from `read_to` on is read; None if the file changed."""
        begin, end = self.read_to, min(HEAD_BYTES, self.read_to + taken)
        if begin >= HEAD_BYTES or end <= self.head.length:
            return self.head
        # The look is later than the data: the part of the file that both have must be the same.
        if len(look.head) < end or look.head[begin:end] != bytes(data[: end - begin]):
            return None
        return FileHead.of(look.head, end)

    def intended(
        self, data: Buffer, *, codec: Codec, rules: int, ends_mid_line: bool
    ) -> BatchIntent:
        """Returns the next batch's intent, for bytes from `read_to` on."""
        return BatchIntent(
            producer=self.producer,
            sequence=self.sequence + 1,
            begin=self.read_to,
            end=self.read_to + len(data),
            checksum=xxhash.xxh3_64_intdigest(data),
            cuts=self.cuts,
            codec=codec,
            rules=rules,
            begins_mid_line=self.reads_mid_line,
            ends_mid_line=ends_mid_line,
        )

    def checkpoint(
        self, *, intent: BatchIntent | None = None, head: FileHead | None = None
    ) -> FileCheckpoint:
        """Returns the checkpoint to save, with one more intent if given."""
        intents = self.intents if intent is None else [*self.intents, intent]
        return FileCheckpoint(
            identity=self.identity,
            path=self.path,
            folder=self.folder,
            name=self.name,
            home=self.home,
            offset=self.offset,
            is_mid_line=self.is_mid_line,
            cuts=self.cuts,
            head=self.head if head is None else head,
            intents=tuple(intents),
            birth_ns=self.birth_ns,
        )

    def intend(self, intent: BatchIntent, head: FileHead) -> None:
        """The intent is on its way to the disk: reading continues behind it."""
        if intent.begin != self.read_to or intent.sequence != self.sequence + 1:
            raise InvariantViolated(f"an intent of {self.path} does not follow the one before")
        self.sequence = intent.sequence
        self.intents.append(intent)
        self.head = head
        self.read_to, self.reads_mid_line = intent.end, intent.ends_mid_line

    def skip(self, count: int, head: FileHead) -> None:
        """Skips bytes that make no line: the newline of a line that was shipped without it."""
        self.head = head
        self.read_to += count
        self.reads_mid_line = False
        if not self.intents:
            self.offset, self.is_mid_line = self.read_to, False

    def resumed(self, intent: BatchIntent) -> None:
        """A batch of an earlier life is made again, or cannot be."""
        self.resuming.remove(intent)

    def settled(self, intent: BatchIntent) -> None:
        """A batch is stored, or its outcome will never be known: the file continues behind it."""
        self.intents.remove(intent)
        if intent.cuts == self.cuts:
            self.offset, self.is_mid_line = intent.end, intent.ends_mid_line
            if not self.intents:
                self.offset, self.is_mid_line = self.read_to, self.reads_mid_line

    def begin_anew(self) -> int:
        """The file was cut: all in it is new. Returns how many bytes are lost unread."""
        # If the file was not seen to shrink, its growth may belong to the new contents.
        lost = max(0, self.peak_size - self.read_to) if self.has_shrunk else 0
        self.peak_size, self.has_shrunk = 0, False
        self.cuts += 1
        self.offset = self.read_to = 0
        self.is_mid_line = self.reads_mid_line = False
        self.head = FileHead()
        self.checked = None
        return lost


ProducerOf = Callable[[int, FileIdentity], bytes]
"""Makes a unique producer id for each file, by its number, in one life of a tailer."""
