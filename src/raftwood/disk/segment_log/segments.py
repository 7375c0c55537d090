"""The segment files: their sizes, preparing the next one ahead of need, removing old ones.

A segment gets its room, its header and its name before it is written, each made durable in turn. So
a full disk shows here and nowhere else, and never in the middle of a flush, where it would end the
process (decision 0004). And a segment that holds a record can't lose its name: after a power loss,
a synced file whose directory was not synced may be gone. Planted bug: "a log whose directory is not
synced"

A segment is written in one life of the process: a start begins a new one, so that a leftover of the
last life is never taken for what follows (decision 0002).
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

from msgspec import Meta

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull
from raftwood.base.files import NO_ROOM, Completion, perform
from raftwood.base.logs import get_logger
from raftwood.base.settings import Section
from raftwood.disk.segment_log.format import encode_segment_header


class LogSettings(Section, frozen=True):
    """Sizes and bounds of the shared log; may change between two starts."""

    segment_bytes: Annotated[
        int,
        Meta(
            ge=16 << 10,
            le=1 << 30,
            description="Size of a segment file; a record takes up to half.",
        ),
    ] = 64 << 20
    flush_bytes_max: Annotated[
        int, Meta(ge=4 << 10, description="Bytes that one sync serves at the most.")
    ] = 8 << 20
    pending_bytes_max: Annotated[
        int,
        Meta(ge=64 << 10, description="Bytes waiting for the disk before appends refuse."),
    ] = 128 << 20
    cache_bytes_max: Annotated[
        int, Meta(ge=0, description="Bytes of the latest records kept in memory.")
    ] = 64 << 20
    runs_live_max: Annotated[
        int, Meta(ge=1, description="Runs in the index (28 bytes each) before refusing.")
    ] = 20_000_000
    live_percent_min: Annotated[
        int,
        Meta(
            ge=0, le=100, description="The oldest segment is copied forward below this live share."
        ),
    ] = 20
    full_retry_ms: Annotated[
        int, Meta(ge=1, description="Wait between attempts to get room on a full disk.")
    ] = 1000

    @property
    def reserve_bytes(self) -> int:
        """The room kept in the active segment for states and truncations when the disk is full."""
        return min(1 << 20, self.segment_bytes // 8)

    @property
    def write_bytes_max(self) -> int:
        """The most that one write (headers and payloads) may take."""
        return self.segment_bytes // 2


_log = get_logger("disk")

_SUFFIX: Final = ".segment"
PREPARING: Final = "preparing.temporary"


def segment_path(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}{_SUFFIX}"


def segment_number(name: str) -> int | None:
    """Returns the number in a segment's file name, or None for other files."""
    digits = name.removesuffix(_SUFFIX)
    if digits == name or len(digits) != 10 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def _nothing() -> None:
    pass


class Segments:
    """The files of one log, from `oldest` to `active`, and the one prepared behind it."""

    def __init__(
        self,
        environment: Environment,
        settings: LogSettings,
        folder: str,
        *,
        log_id: bytes,
        used_bytes: dict[int, int],
        record_bytes: dict[int, int],
        active: int,
    ) -> None:
        self._environment = environment
        self._files = environment.files
        self._settings = settings
        self._folder = folder
        self._log_id = log_id
        self.on_prepared: Callable[[], None] = _nothing
        """Called when a preparation has ended, even for lack of room."""
        self.on_sealed: Callable[[], None] = _nothing
        self.used_bytes = used_bytes
        """The used bytes of each sealed segment."""
        self.record_bytes = Counter(record_bytes)
        """The bytes of each segment without its flush headers."""
        self.oldest = min(used_bytes, default=active)
        self.active = self._first_active = active
        self.is_full = False
        """Whether the disk had no room for the next segment."""
        self._ready = active - 1
        self._is_preparing = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def sealed_bytes(self) -> int:
        return sum(self.used_bytes.values())

    def path(self, number: int) -> str:
        return segment_path(self._folder, number)

    def is_ready(self, number: int) -> bool:
        return number <= self._ready

    async def create_first(self) -> None:
        """Creates the active segment; `DiskFull` if there is no room for it."""
        try:
            await perform(self._files, *self._preparation(self.active))
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            with suppress(FileNotFoundError):  # perhaps not even its name had room
                await perform(self._files, seam.Unlink(self._temporary))
            raise self.disk_full() from error
        self._ready = self.active

    def disk_full(self) -> DiskFull:
        return DiskFull(
            f"no room in {self._folder} for another {self._settings.segment_bytes} bytes: free "
            "space on the disk or truncate the log; writing goes on by itself then"
        )

    def prepare_next(self) -> None:
        """Creates one segment after the other until the one behind the active one exists."""
        number = self._ready + 1
        if self._closed or self._is_preparing or number > self.active + 1:
            return
        self._is_preparing = True
        self._files.submit(
            self._preparation(number), lambda completion: self._prepared(number, completion)
        )

    def roll(self, *, used_bytes: int) -> None:
        """Sends records to the next segment from now on; its file may still be in preparation."""
        self.used_bytes[self.active] = used_bytes
        self.active += 1

    def seal(self, number: int) -> None:
        """Frees the unused room of a segment whose contents are all durable."""
        if self._closed:
            return  # the file is closed; the next process does it
        if number >= self._first_active:  # an earlier process's were cut at the start
            path = self.path(number)
            operations = (seam.Truncate(path, self.used_bytes[number]), seam.Close(path))
            self._files.submit(operations, self._must_succeed)
        self.on_sealed()

    async def remove(self, number: int) -> None:
        """Unlinks a segment that a durable flush has declared unneeded.

        A failure ends the process: it is then unknown which files the next start will find.
        Test: test_log_compaction::test_a_failure_to_remove_a_segment_ends_the_process
        """
        del self.used_bytes[number]
        del self.record_bytes[number]
        try:
            await perform(
                self._files, seam.Unlink(self.path(number)), seam.SyncDirectory(self._folder)
            )
        except OSError as error:
            self._end_process(f"segment {number} cannot be removed: {error}")
        if self.is_full:
            self._retry()

    def close(self) -> None:
        """Begins no more work, and calls no callback when the work under way ends."""
        self._closed = True
        self.on_prepared = _nothing
        if self._retry_timer is not None:
            self._retry_timer.cancel()

    @property
    def _temporary(self) -> str:
        return f"{self._folder}/{PREPARING}"

    def _preparation(self, number: int) -> tuple[seam.Operation, ...]:
        temporary, path = self._temporary, self.path(number)
        header = encode_segment_header(number=number, log_id=self._log_id)
        return (
            seam.Open(temporary, create=True),
            seam.Preallocate(temporary, self._settings.segment_bytes),
            seam.Write(temporary, 0, [header]),
            seam.DataSync(temporary),
            seam.Rename(temporary, path),
            seam.SyncDirectory(self._folder),
        )

    def _prepared(self, number: int, completion: Completion) -> None:
        if completion.error is None:
            self._ready = number
            self._is_preparing = False
            if self.is_full:
                _log.warning("there is room on the disk again", folder=self._folder)
            self.is_full = False
            if number < self.active:
                self.prepare_next()  # records are waiting for a segment further on
            self.on_prepared()
        elif completion.error.errno in NO_ROOM:
            if not self.is_full:
                _log.warning("no room on the disk for another segment", folder=self._folder)
            self.is_full = True
            if not isinstance(completion.failed, seam.Open):
                self._files.submit((seam.Unlink(self._temporary),), self._must_succeed)
            if not self._closed:
                delay = self._settings.full_retry_ms / 1000
                self._retry_timer = asyncio.get_running_loop().call_later(delay, self._retry)
            self.on_prepared()
        else:
            self._must_succeed(completion)

    def _retry(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
            self._is_preparing = False
        self.prepare_next()

    def _must_succeed(self, completion: Completion) -> None:
        if completion.error is not None:
            self._end_process(f"{type(completion.failed).__name__} failed: {completion.error}")

    def _end_process(self, reason: str) -> None:
        self._environment.end_process(f"the log in {self._folder} cannot go on: {reason}")
