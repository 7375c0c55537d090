"""One file as it is followed: how far it is read, what of it is under way, and what it became.

No I/O and no clock. What it holds is what its checkpoint says, and what a restart finds out anew.
"""

from collections import deque
from collections.abc import Callable

import msgspec
import xxhash

from raftwood.base.codecs import Codec
from raftwood.base.errors import InvariantViolated
from raftwood.base.files import Buffer
from raftwood.clogs.tail.blocks import Forced
from raftwood.clogs.tail.model import (
    HEAD_BYTES,
    Checkpoint,
    Found,
    Head,
    Identity,
    Intent,
    Look,
)


class FileCounters(msgspec.Struct):
    """What was stored of a file in this life of the tailer."""

    lines: int = 0
    bytes: int = 0
    batches: int = 0


class Checked(msgspec.Struct, frozen=True):
    """When nothing more could be taken of a file."""

    place: tuple[int, int, int]
    """Where reading stood, and the file's size and time."""
    force: Forced


class Followed:
    """A file. Its number is that of its state, and is never used for another one in one life."""

    def __init__(
        self, number: int, checkpoint: Checkpoint, producer: bytes, *, now_ms: int
    ) -> None:
        self.number = number
        self.producer = producer
        self.identity: Identity = checkpoint.identity
        self.path = checkpoint.path
        self.folder = checkpoint.folder
        self.name = checkpoint.name
        self.next_name = checkpoint.name
        """What it is to be shipped as once nothing of it is under way."""
        self.home = checkpoint.home
        self.origin = ""
        """The path of a glob that what is at its path now had before."""
        self.offset = checkpoint.offset
        self.is_mid_line = checkpoint.is_mid_line
        self.cuts = checkpoint.cuts
        self.birth_ns = checkpoint.birth_ns
        self.head: Head = checkpoint.head
        self.intents: deque[Intent] = deque(checkpoint.intents)
        """Durable or about to be, and not acked."""
        self.resuming: deque[Intent] = deque(checkpoint.intents)
        """Those of an earlier life that are to be made again."""
        self.sequence = 0

        self.read_to = self.offset
        """Made into batches up to here."""
        self.reads_mid_line = self.is_mid_line
        for intent in self.intents:
            if intent.cuts == self.cuts:
                self.read_to, self.reads_mid_line = intent.end, intent.ends_mid_line

        self.size = self.read_to
        self.peak_size = self.size
        """The largest one that was seen before the file shrank."""
        self.has_shrunk = False
        """It was seen to, and is not begun anew so far."""
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
        """In this life."""
        self.left_ms: int | None = None
        """Since when it is not at its home any more."""
        self.caught_up_ms: int | None = None
        """When it was first read to its end after that."""
        self.is_overdue = False
        """It lost its name long ago and grows all the same: its successor waits no longer."""
        self.rested_ms: int | None = now_ms
        """Since when it cannot be found, or is of no interest; None: it is followed."""
        self.is_forgotten = False
        self.served = 0
        """When a batch was last made of it, counted in batches of all files."""
        self.problem = ""
        """Why it is not read at the moment."""
        self.refusal = ""
        """Why its batch under way is not stored so far."""
        self.failures = 0
        """In a row."""
        self.retry_at_ms = 0
        self.counters = FileCounters()

    @property
    def is_at_end(self) -> bool:
        """All that is known to be in it is stored."""
        return self.read_to == self.size and not self.intents

    @property
    def behind_bytes(self) -> int:
        return max(0, self.size - self.offset)

    def found(self, found: Found, *, now_ms: int) -> bool:
        """As a scan saw it; whether its size or time are others."""
        self.path, self.was_seen, self.is_matched = found.path, True, found.is_matched
        return self.looked(found.size, found.mtime_ns, now_ms=now_ms)

    def looked(self, size: int, mtime_ns: int, *, now_ms: int) -> bool:
        """Its size and time now; whether they are others."""
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

    def head_after(self, data: Buffer, taken: int, look: Look) -> Head | None:
        """The head once `data` from `read_to` on is read; None where the file changed meanwhile."""
        begin, end = self.read_to, min(HEAD_BYTES, self.read_to + taken)
        if begin >= HEAD_BYTES or end <= self.head.length:
            return self.head
        # The look is later than the data: what both have of the file must be the same.
        if len(look.head) < end or look.head[begin:end] != bytes(data[: end - begin]):
            return None
        return Head.of(look.head, end)

    def intended(self, data: Buffer, *, codec: Codec, rules: int, ends_mid_line: bool) -> Intent:
        """The next batch's intent, for bytes from `read_to` on."""
        return Intent(
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

    def checkpoint(self, *, intent: Intent | None = None, head: Head | None = None) -> Checkpoint:
        """As it is to be durable, with one more intent where there is one."""
        intents = self.intents if intent is None else [*self.intents, intent]
        return Checkpoint(
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

    def intend(self, intent: Intent, head: Head) -> None:
        """The intent is on its way to the disk: reading goes on behind it."""
        if intent.begin != self.read_to or intent.sequence != self.sequence + 1:
            raise InvariantViolated(f"an intent of {self.path} does not follow the one before")
        self.sequence = intent.sequence
        self.intents.append(intent)
        self.head = head
        self.read_to, self.reads_mid_line = intent.end, intent.ends_mid_line

    def skip(self, count: int, head: Head) -> None:
        """Bytes that make no line: the newline of a line that was shipped without it."""
        self.head = head
        self.read_to += count
        self.reads_mid_line = False
        if not self.intents:
            self.offset, self.is_mid_line = self.read_to, False

    def resumed(self, intent: Intent) -> None:
        """A batch of an earlier life is made again, or cannot be."""
        self.resuming.remove(intent)

    def settled(self, intent: Intent) -> None:
        """A batch is stored, or nobody will ever know: its file goes on behind it."""
        self.intents.remove(intent)
        if intent.cuts == self.cuts:
            self.offset, self.is_mid_line = intent.end, intent.ends_mid_line
            if not self.intents:
                self.offset, self.is_mid_line = self.read_to, self.reads_mid_line

    def begin_anew(self) -> int:
        """The file was cut: all in it is new. How many bytes are known to be lost unread."""
        # If nobody saw it shrink, what it had grown by may be of the new contents.
        lost = max(0, self.peak_size - self.read_to) if self.has_shrunk else 0
        self.peak_size, self.has_shrunk = 0, False
        self.cuts += 1
        self.offset = self.read_to = 0
        self.is_mid_line = self.reads_mid_line = False
        self.head = Head()
        self.checked = None
        return lost


ProducerOf = Callable[[int, Identity], bytes]
"""A producer id of its own for each file, by its number, in one life of a tailer."""
