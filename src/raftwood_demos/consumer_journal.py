"""What the demo's consumers did: each process notes it in a file, and the demo reads all of them.

`JournalProcessor` is the processor, for `raftwood consume --processor`; it writes to the current
folder, a line for what it was given at once, and one for each checkpoint that it knows to be in the
store. A line is written at once, so that it is there, whole, when its process is killed right
behind it.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, cast

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.loghub.client.pulled_batches import LogRecord
from raftwood.loghub.consumer.checkpoints import CheckpointTracker
from raftwood.loghub.consumer.loghub_source import LogHubBatch
from raftwood.loghub.consumer.processor import Processor
from raftwood.loghub.consumer.source import ShardBatch

SUFFIX: Final = ".notes"
NUMBER: Final = "number"
"""The field by which records are told apart."""
PERSIST_S: Final = 0.25


class Processed(msgspec.Struct, frozen=True, tag=True):
    """A call of process()."""

    shard: str
    epoch: int
    position: str
    """Of its first batch."""
    began_ns: int
    """On the clock that all processes of a machine share."""
    ended_ns: int
    numbers: list[int]


class Kept(msgspec.Struct, frozen=True, tag=True):
    """All that was processed in this epoch up to here has its checkpoint in the store."""

    shard: str
    epoch: int


Note = Processed | Kept


class JournalProcessor(Processor):
    """Saves each checkpoint in memory, and some in the store."""

    def __init__(self) -> None:
        self._path = f"{os.getpid()}{SUFFIX}"
        self._kept_ns = 0

    def process(self, batches: Sequence[ShardBatch], tracker: CheckpointTracker) -> None:
        began_ns = time.monotonic_ns()
        numbers = [
            int(record.contents[NUMBER])
            for batch in batches
            for record in cast("list[LogRecord]", batch.records())
        ]
        position = str(cast("LogHubBatch", batches[0]).position)
        shard, epoch = tracker.shard_id, tracker.epoch
        now_ns = time.monotonic_ns()
        self._write(Processed(shard, epoch, position, began_ns, now_ns, numbers))
        is_due = now_ns - self._kept_ns > PERSIST_S * 1e9
        # A store that is away is no reason to begin anew: the checkpoint is in memory as well.
        with suppress(RaftwoodError):
            tracker.save_checkpoint(persistent=is_due)
            if is_due:
                self._write(Kept(shard, epoch))
                self._kept_ns = now_ns

    def _write(self, note: Note) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, msgspec.json.encode(note) + b"\n")
        finally:
            os.close(file)


class Tenancy:
    """What one process did with a shard in one epoch."""

    def __init__(self, pid: int, shard: str, epoch: int) -> None:
        self.pid = pid
        self.shard = shard
        self.epoch = epoch
        self.numbers: list[int] = []
        self.kept = 0
        """So many of these have their checkpoint in the store."""
        self.first_ns = self.last_ns = 0
        """When the first call began, and the last one ended."""

    def add(self, note: Note) -> None:
        if isinstance(note, Kept):
            self.kept = len(self.numbers)
            return
        self.first_ns = self.first_ns or note.began_ns
        self.last_ns = note.ended_ns
        self.numbers += note.numbers


class ConsumerJournal:
    """The notes of all processes in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}
        """By file, how much of it is known."""
        self._decoder: msgspec.json.Decoder[Note] = msgspec.json.Decoder(Note)
        self._tenancies: dict[tuple[str, int, int], Tenancy] = {}
        self.distinct: set[int] = set()
        """Numbers of all records that somebody has processed."""
        self.processed = 0

    def update(self) -> None:
        """Read what was added."""
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(SUFFIX):
                self._update(name, int(name.removesuffix(SUFFIX)))

    def _update(self, name: str, pid: int) -> None:
        with open(f"{self._folder}/{name}", "rb") as file:
            file.seek(self._read.get(name, 0))
            lines, newline, _ = file.read().rpartition(b"\n")
        self._read[name] = self._read.get(name, 0) + len(lines) + len(newline)
        for line in lines.splitlines():
            note = self._decoder.decode(line)
            key = (note.shard, note.epoch, pid)
            if key not in self._tenancies:
                self._tenancies[key] = Tenancy(pid, note.shard, note.epoch)
            self._tenancies[key].add(note)
            if isinstance(note, Processed):
                self.distinct.update(note.numbers)
                self.processed += len(note.numbers)

    def tenancies(self) -> dict[str, list[Tenancy]]:
        """By shard, in the order of their epochs."""
        found: dict[str, list[Tenancy]] = {}
        for key in sorted(self._tenancies):
            found.setdefault(key[0], []).append(self._tenancies[key])
        return found

    def holders(self) -> dict[str, int]:
        """By shard, the process that last had it, as far as it was given something."""
        return {shard: each[-1].pid for shard, each in self.tenancies().items()}
