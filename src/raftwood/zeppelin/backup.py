"""Backs up a table into a folder, through the client: each partition from a checkpoint of its own.

An interrupted backup resumes: after each file it writes the partition's progress. An unfinished
partition continues while its checkpoint exists, else it starts anew. The manifest comes last, once
the backed-up partitions are those that the table has.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from raftwood.base.errors import AlreadyExists, Conflict, InvalidInput, RaftwoodError, Unavailable
from raftwood.base.logs import get_logger
from raftwood.zeppelin import backup_format as form
from raftwood.zeppelin.backup_format import (
    BackupFolder,
    ByteRate,
    PartitionBackup,
    TableBackupFile,
    TableManifest,
)
from raftwood.zeppelin.client.async_kv import AsyncKv
from raftwood.zeppelin.client.checkpoints import PAGE_BYTES, AsyncCheckpoint, PartitionPlace
from raftwood.zeppelin.client.errors import CheckpointGone
from raftwood.zeppelin.pages import Page

FILE_BYTES: Final = 32 << 20
"""Packed size at which a file ends and the next begins."""
PARALLEL: Final = 4
"""Partitions at a time; each has a file in memory."""
TTL_MS: Final = 600_000
"""How long a checkpoint lives, so that an interrupted backup can resume its partition."""
TRIES_MAX: Final = 5
"""Attempts for one partition, each with another checkpoint."""
ROUNDS_MAX: Final = 10
"""How often partitions may be split while a backup runs."""
_log = get_logger("zeppelin")


class BackupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a backup, with what earlier runs finished."""

    partitions: int
    finished: int
    pairs: int
    raw_bytes: int
    """Bytes of pages, before they are packed."""
    packed_bytes: int


OnBackupProgress = Callable[[BackupProgress], None]


async def back_up(
    kv: AsyncKv,
    folder: BackupFolder,
    *,
    parallel: int = PARALLEL,
    bytes_per_s: int | None = None,
    told: OnBackupProgress = lambda _: None,
    file_bytes: int = FILE_BYTES,
    page_bytes: int = PAGE_BYTES,
    ttl_ms: int = TTL_MS,
) -> TableManifest:
    """Writes the table into a folder, or resumes a backup that was interrupted there.

    Each partition is copied as of one moment; the moments of two partitions differ.
    """
    if parallel < 1:
        raise InvalidInput(f"{parallel} partitions at a time: give 1 or more")
    if await folder.find(form.MANIFEST) is not None:
        raise AlreadyExists(
            f"{folder.place(form.MANIFEST)} is there, so that backup is finished: give another "
            "folder"
        )
    sizes = _Sizes(file_bytes, page_bytes, ttl_ms)
    work = _Backup(kv, folder, ByteRate(bytes_per_s), told, sizes)
    for _ in range(ROUNDS_MAX):
        places = await kv.partitions()
        done = await work.run(places, parallel)
        # A partition that split meanwhile has other slots now, and its new half is missing.
        is_same = _as_told(await kv.partitions()) == _as_told(places)
        if is_same and form.covers_all_slots(done):
            pairs = sum(each.pairs for each in done)
            manifest = form.sealed(TableManifest(partitions=done, pairs=pairs))
            await folder.write(form.MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
            return manifest
    raise Conflict("the table's partitions are split all the time: back it up later")


def _as_told(places: list[PartitionPlace]) -> list[tuple[int, int, range]]:
    return [(each.incarnation, each.number, each.slots) for each in places]


class _Sizes(NamedTuple):
    file_bytes: int
    page_bytes: int
    ttl_ms: int


class _Backup:
    def __init__(
        self,
        kv: AsyncKv,
        folder: BackupFolder,
        pace: ByteRate,
        told: OnBackupProgress,
        sizes: _Sizes,
    ) -> None:
        self._kv = kv
        self._folder = folder
        self._pace = pace
        self._told = told
        self._sizes = sizes
        self._partitions = 0
        self._masters: set[str | None] = set()
        self._states: dict[int, PartitionBackup] = {}
        """Progress of each partition, by its number."""
        self._unwritten: dict[int, _File] = {}
        """Pairs of each partition, collected for its next file."""

    async def run(self, places: list[PartitionPlace], parallel: int) -> tuple[PartitionBackup, ...]:
        """Backs up all partitions; returns them in the order of their numbers."""
        self._partitions = len(places)
        self._masters = {each.master for each in places}
        self._states.clear()
        self._tell()
        waiting = list(reversed(places))

        async def some() -> None:
            while waiting:
                await self._partition(waiting.pop())

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(parallel, len(places))):
                    group.create_task(some())
        except* RaftwoodError as errors:
            raise errors.exceptions[0] from None
        return tuple(self._states[number] for number in sorted(self._states))

    async def _partition(self, place: PartitionPlace) -> None:
        state = await self._before(place)
        reason = ""
        for _ in range(TRIES_MAX):
            try:
                if state is None:
                    checkpoint = await self._kv.checkpoint(place.number, ttl_ms=self._sizes.ttl_ms)
                    state = PartitionBackup(about=checkpoint.about)
                    await self._note(state)
                self._states[place.number] = state
                if not state.is_finished:
                    await self._go_on(self._kv.checkpoint_of(state.about), state)
                self._tell()
            except (CheckpointGone, Unavailable) as error:
                # The checkpoint's node is gone, or the checkpoint has expired.
                reason = error.message
                _log.warning("a partition is begun anew", partition=place.number, reason=reason)
                await self._forget(place)
                state = None
            else:
                return
            finally:
                self._unwritten.pop(place.number, None)
        raise Unavailable(
            f"partition {place.number} could not be read to its end {TRIES_MAX} times, at last: "
            f"{reason}; begin again to go on"
        )

    async def _before(self, place: PartitionPlace) -> PartitionBackup | None:
        """Returns what an interrupted backup has of this partition, if it is still the same."""
        name = form.partition_name(place.number)
        data = await self._folder.find(name)
        if data is None:
            return None
        try:
            before = msgspec.json.decode(data, type=PartitionBackup)
        except (msgspec.MsgspecError, ValueError) as error:
            raise form.damaged(self._folder.place(name), "it cannot be read") from error
        if before.about.incarnation != place.incarnation:
            raise Conflict(
                f"{self._folder.uri} has the beginning of a backup of another table: give another "
                "folder"
            )
        form.check_names(before, self._folder.place(name))
        self._states[place.number] = before
        # The request carries the password: send it only to nodes that the table's own nodes name.
        is_ours = before.is_finished or before.about.address in self._masters
        if before.slots == place.slots and is_ours:
            return before
        await self._forget(place)
        return None

    async def _forget(self, place: PartitionPlace) -> None:
        """Removes what the backup has of a partition, which starts anew."""
        state = self._states.pop(place.number, None)
        await self._folder.delete(form.partition_name(place.number))
        for file in state.files if state is not None else ():
            await self._folder.delete(file.name)

    async def _go_on(self, checkpoint: AsyncCheckpoint, state: PartitionBackup) -> None:
        number = checkpoint.partition
        file = self._unwritten[number] = _File()
        async for page in checkpoint.pages(state.cursor, bytes_max=self._sizes.page_bytes):
            block = await self._folder.beside(form.packed, page) if page.count else b""
            file.add(page, block)
            is_last = not page.next_cursor
            if is_last or file.packed_bytes >= self._sizes.file_bytes:
                files = state.files
                if file.pairs:
                    files = (*files, await self._write(checkpoint, len(files) + 1, file))
                state = msgspec.structs.replace(
                    state,
                    files=files,
                    raw_bytes=state.raw_bytes + file.raw_bytes,
                    cursor=page.next_cursor,
                    is_finished=is_last,
                )
                await self._note(state)
                self._states[number] = state
                file = self._unwritten[number] = _File()
            self._tell()
            await self._pace.take(len(page.data))
        with suppress(RaftwoodError):  # the checkpoint expires by itself as well
            await checkpoint.end()

    async def _write(
        self, checkpoint: AsyncCheckpoint, number: int, file: "_File"
    ) -> TableBackupFile:
        name = form.file_name(checkpoint.about, number)
        data = form.encode_file(checkpoint.partition, number, file.blocks)
        await self._folder.write(name, data)
        return TableBackupFile(
            name=name, bytes=len(data), checksum=form.checksum_of(data), pairs=file.pairs
        )

    async def _note(self, state: PartitionBackup) -> None:
        name = form.partition_name(state.about.partition)
        await self._folder.write(name, msgspec.json.format(msgspec.json.encode(state)))

    def _tell(self) -> None:
        states, files = self._states.values(), self._unwritten.values()
        all_: list[PartitionBackup | _File] = [*states, *files]
        packed = sum(file.bytes for each in states for file in each.files)
        self._told(
            BackupProgress(
                partitions=self._partitions,
                finished=sum(each.is_finished for each in states),
                pairs=sum(each.pairs for each in all_),
                raw_bytes=sum(each.raw_bytes for each in all_),
                packed_bytes=packed + sum(each.packed_bytes for each in files),
            )
        )


class _File:
    """Pages collected for one file."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.pairs = self.raw_bytes = self.packed_bytes = 0

    def add(self, page: Page, block: bytes) -> None:
        if block:
            self.blocks.append(block)
        self.pairs += page.count
        self.raw_bytes += len(page.data)
        self.packed_bytes += len(block)
