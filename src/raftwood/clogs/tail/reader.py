"""`FileReader`: reads the next batch of a file, saves the intent, makes the batch.

A batch that is passed on can always be made again. Its intent is durable before that, so that after
a kill the same bytes go under the same name; the intent is written while the batch is made. Batches
are read and intended one after the other, while earlier ones are still being made.

`OpenFiles` bounds the descriptors: the longest unused ones are closed first. A file without a name
is never closed before it is read to its end, because it could not be opened again.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
import xxhash

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, InvariantViolated, Overloaded
from raftwood.base.logs import get_logger
from raftwood.clogs.tail.batch_maker import BatchMaker, Forced, MadeBatch
from raftwood.clogs.tail.checkpoints import BatchIntent, FileCheckpoints, FileHead, FileLook
from raftwood.clogs.tail.followed_file import FollowedFile, TailCounters
from raftwood.clogs.tail.rules import FileVerdict, forced, judged, wants_reading
from raftwood.clogs.tail.seams import Handle, OpenedFile, TailFiles
from raftwood.clogs.tail.settings import TailSettings

Judge = Callable[[FollowedFile, FileVerdict], bool]
"""Handles a verdict other than `SAME`; returns whether the file is still followed."""


class OpenFiles:
    """Files by their descriptors. A file that `hold` returned is not closed before `done`."""

    def __init__(self, files: TailFiles, *, limit: int, judge: Judge) -> None:
        self._files = files
        self._limit = limit
        self._judge = judge
        self._held: dict[int, tuple[FollowedFile, Handle]] = {}
        """By the file's number, the longest unused one first."""
        self._busy: dict[int, int] = {}
        self._opening = 0

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[tuple[FollowedFile, Handle]]:
        return list(self._held.values())

    async def hold(self, file: FollowedFile) -> Handle | None:
        """Returns the file, open; None if it cannot be opened now. Judges a file that it opens."""
        held = self._held.pop(file.number, None)
        if held is not None:
            self._held[file.number] = held
            self._busy[file.number] = self._busy.get(file.number, 0) + 1
            return held[1]
        if len(self._held) + self._opening >= self._limit and not self._close_one():
            return None
        self._opening += 1
        try:
            opened = await self._files.open(file.path)
        finally:
            self._opening -= 1
        return self._judged(file, opened)

    def _judged(self, file: FollowedFile, opened: OpenedFile) -> Handle | None:
        verdict = judged(file, opened.look, is_held=False)
        if file.number in self._held or (
            verdict is not FileVerdict.SAME and not self._judge(file, verdict)
        ):
            self._files.close(opened.handle)
            return None
        file.folder, file.links, file.is_held = opened.folder, opened.look.links, True
        file.birth_ns = opened.look.birth_ns
        self._held[file.number] = (file, opened.handle)
        self._busy[file.number] = 1
        return opened.handle

    def done(self, file: FollowedFile) -> None:
        """Ends the use of the file for now."""
        uses = self._busy.pop(file.number) - 1
        if uses:
            self._busy[file.number] = uses

    def release(self, file: FollowedFile) -> None:
        """Closes a file, if it is open."""
        if file.number in self._busy:
            raise InvariantViolated(f"{file.path} is closed while it is read")
        held = self._held.pop(file.number, None)
        if held is not None:
            file.is_held = False
            self._files.close(held[1])

    def _close_one(self) -> bool:
        """Closes one file. Those that are read to their ends come before those that might be
        deleted unread, and those that a glob finds again before those that have to be searched.
        """
        idle = [
            file
            for number, (file, _) in self._held.items()
            if number not in self._busy and file.links
        ]
        for file in sorted(idle, key=_worth):
            self.release(file)
            return True
        return False


def _worth(file: FollowedFile) -> tuple[bool, bool]:
    return file.read_to < file.size, not file.is_matched


_log = get_logger("tail")
_NEWLINES = (b"\n", b"\r\n")
_RETRY_MS_MAX = 60_000
_STEPS_MAX = 3
"""Tries to read on at once after the data read turned out to be useless."""


class IntendedBatch(msgspec.Struct, frozen=True):
    """A batch that is to be made."""

    file: FollowedFile
    intent: BatchIntent
    block: bytes
    durable: asyncio.Event | None = None
    """Set once the intent is durable; None for a batch of an earlier life."""


class ReadyBatch(msgspec.Struct, frozen=True):
    """A batch that may be delivered."""

    file: FollowedFile
    intent: BatchIntent
    made: MadeBatch


class FileReader:
    """Makes the batches of all files of one tailer."""

    def __init__(
        self,
        environment: Environment,
        settings: TailSettings,
        *,
        files: TailFiles,
        open_files: OpenFiles,
        maker: BatchMaker,
        checkpoints: FileCheckpoints,
        counters: TailCounters,
    ) -> None:
        self._clock = environment.clock
        self._random = environment.random
        self._backoff = Backoff(first_ms=settings.retry_ms, longest_ms=_RETRY_MS_MAX)
        self._settings = settings
        self._files = files
        self._open_files = open_files
        self._maker = maker
        self.makers: Final = {maker.rules: maker}
        """By their rules: a batch of an earlier life is made by its old rules."""
        self._checkpoints = checkpoints
        self._counters = counters
        self.is_last = False
        """Whatever is in the files is shipped now, without waiting for the rest of a line."""

    def has_work(self, file: FollowedFile, *, now_ms: int) -> bool:
        if now_ms < file.retry_at_ms:
            return False
        return wants_reading(file, self._forced(file, now_ms))

    async def next_batch(self, file: FollowedFile) -> IntendedBatch | None:
        """Returns the next batch to make; None if there is none for now."""
        try:
            for _ in range(_STEPS_MAX):
                if file.is_forgotten or not self.has_work(file, now_ms=_now_ms()):
                    break
                if file.resuming:
                    intended = await self._resume(file)
                else:
                    intended = await self._read(file)
                if intended is not None:
                    return intended
        except FileNotFoundError:
            # It was renamed or removed since the last scan: the next one will show.
            file.retry_at_ms = _now_ms() + self._settings.scan_ms
        except OSError as error:
            self.trouble(file, f"{file.path} cannot be read: {error.strerror}")
        except (DiskFull, Overloaded) as error:
            self.trouble(file, f"the state of {file.path} cannot be written: {error.message}")
        return None

    def trouble(self, file: FollowedFile, problem: str) -> None:
        """Logs a new problem; tries again later, each time later."""
        if problem != file.problem:
            _log.warning("a file is held up", file=file.path, problem=problem)
        file.problem = problem
        wait_ms = self._backoff.delay_ms(file.failures, self._random.random())
        file.failures += 1
        file.retry_at_ms = _now_ms() + int(wait_ms)
        self._counters.troubles += 1

    def begin_anew(self, file: FollowedFile) -> None:
        """Begins a file again that was cut."""
        lost = file.begin_anew()
        self._counters.cuts += 1
        self._counters.cut_bytes += lost
        _log.warning("a file was cut and is begun anew", file=file.path, lost_bytes=lost)
        self.give_up(file, "the file was cut")

    def give_up(self, file: FollowedFile, reason: str) -> None:
        """Gives up batches of an earlier life that cannot be made again, stored or not."""
        for intent in list(file.resuming):
            self._give_up(file, intent, reason)

    def _give_up(self, file: FollowedFile, intent: BatchIntent, reason: str) -> None:
        file.resumed(intent)
        file.settled(intent)
        self._counters.unknown_batches += 1
        self._counters.unknown_bytes += intent.end - intent.begin
        _log.error(
            "a batch of an earlier run cannot be made again: it may be stored or not",
            file=file.path,
            begin=intent.begin,
            end=intent.end,
            reason=reason,
        )

    # Reading on

    async def _read(self, file: FollowedFile) -> IntendedBatch | None:
        settings = self._settings
        found = await self._read_at(file, file.read_to, settings.batch_bytes_max)
        if found is None:
            return None
        data, look = found
        file.looked(look.size, look.mtime_ns, now_ms=_now_ms())
        # If the file has more than was read, the data does not include its end.
        is_end = len(data) < settings.batch_bytes_max
        force = self._forced(file, _now_ms()) if is_end else Forced.NOTHING
        taken = self._maker.taken(data, force)
        head = file.head_after(data, taken, look)
        if head is None:
            return None  # it changed while it was read; the next look shows how
        if not taken:
            file.nothing_taken(force)
            return None
        block = data if taken == len(data) else data[:taken]
        if file.reads_mid_line and block in _NEWLINES:
            file.skip(taken, head)
            return None
        return self._intend(file, block, head)

    def _intend(self, file: FollowedFile, block: bytes, head: FileHead) -> IntendedBatch:
        intent = file.intended(
            block,
            codec=self._settings.compression.codec,
            rules=self._maker.rules,
            ends_mid_line=not block.endswith(b"\n"),
        )
        durable = self._checkpoints.save(file.number, file.checkpoint(intent=intent, head=head))
        file.intend(intent, head)
        return IntendedBatch(file, intent, block, durable)

    async def make(self, intended: IntendedBatch) -> ReadyBatch:
        """Returns the batch once it is made, and its intent is durable."""
        file, intent = intended.file, intended.intent
        job = partial(
            self.makers[intent.rules].make,
            intended.block,
            intent,
            name=file.name,
            time_ns=self._clock.wall_ns(),
            is_resumed=intended.durable is None,
        )
        made = await self._files.work(job)
        if made is None:
            raise InvariantViolated(f"bytes {intent.begin} to {intent.end} of {file.path} are none")
        if intended.durable is not None:
            await intended.durable.wait()
        return ReadyBatch(file, intent, made)

    # Batches of an earlier life

    async def _resume(self, file: FollowedFile) -> IntendedBatch | None:
        intent = file.resuming[0]
        if intent.rules not in self.makers:
            self.trouble(
                file,
                f"bytes {intent.begin} to {intent.end} of {file.path} may be stored, and were "
                "made into lines by other rules (masks, mask_rules, multiline, line_bytes_max, "
                "field): ship them with these rules once, then change the rules",
            )
            return None
        found = await self._read_at(file, intent.begin, intent.end - intent.begin)
        if found is None or not file.resuming:
            return None
        data, _ = found
        if xxhash.xxh3_64_intdigest(data) != intent.checksum:
            self._give_up(file, intent, "the file's bytes are others by now")
            return None
        file.resumed(intent)
        self._counters.resumed_batches += 1
        return IntendedBatch(file, intent, data)

    async def _read_at(
        self, file: FollowedFile, offset: int, length: int
    ) -> tuple[bytes, FileLook] | None:
        """Returns None if the file cannot be opened now, or turned out to be another one."""
        handle = await self._open_files.hold(file)
        if handle is None:
            return None
        try:
            data, look = await self._files.read(handle, offset, length)
        finally:
            self._open_files.done(file)
        file.links = look.links
        file.problem, file.failures, file.retry_at_ms = "", 0, 0
        verdict = judged(file, look, is_held=True)
        if verdict is FileVerdict.CUT:
            file.looked(look.size, look.mtime_ns, now_ms=_now_ms())
            self.begin_anew(file)
        elif verdict is not FileVerdict.SAME:
            raise InvariantViolated(f"the descriptor of {file.path} is of another file")
        return (data, look) if verdict is FileVerdict.SAME else None

    def _forced(self, file: FollowedFile, now_ms: int) -> Forced:
        return forced(file, self._settings, now_ms=now_ms, is_last=self.is_last)


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
