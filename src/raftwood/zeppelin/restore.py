"""Restores a table from a backup, through the client.

Each pair goes to the node that has its slot now: the table may have other partitions and replicas
than the backed-up one. Expired pairs are skipped; the others keep their expiry time. All writes are
absolute, so an interrupted restore may run again; with a progress file it skips finished files.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raftwood.base.environment import Clock
from raftwood.base.errors import Conflict, InvalidInput, NotFound, RaftwoodError, StoreDamaged
from raftwood.zeppelin import backup_format as form
from raftwood.zeppelin.backup_format import BackupFolder, ByteRate, TableBackupFile, TableManifest
from raftwood.zeppelin.client.async_kv import AsyncKv
from raftwood.zeppelin.pages import Page

if TYPE_CHECKING:
    import pyarrow

PARALLEL: Final = 4
"""Files at a time; each is in memory as a whole."""
MISSING_SHOWN: Final = 20


class RestoreProgress(msgspec.Struct, kw_only=True):
    """Progress of a restore."""

    files: int
    finished: int = 0
    pairs: int = 0
    """Pairs in the backup."""
    restored: int = 0
    """Pairs written, in this run and those before."""
    expired: int = 0
    ending: int = 0
    """How many of the written pairs expire some time."""
    raw_bytes: int = 0


class _Done(msgspec.Struct, kw_only=True):
    """The progress file of a restore."""

    manifest: str
    """The manifest's checksum."""
    incarnation: int
    """Incarnation of the target table."""
    files: dict[str, tuple[int, int, int]] = {}
    """For each finished file: how many pairs were restored, had expired, and expire some time."""


OnRestoreProgress = Callable[[RestoreProgress], None]


async def read_manifest(folder: BackupFolder) -> TableManifest:
    """Returns the manifest, checked; does not check its files."""
    place = folder.place(form.MANIFEST)
    data = await folder.find(form.MANIFEST)
    if data is None:
        raise NotFound(
            f"there is no {place}: this is no backup, or one that was interrupted; the same "
            "`raftwood kv backup` goes on with it"
        )
    return form.decode_manifest(data, place)


async def verify(
    folder: BackupFolder, *, told: OnRestoreProgress = lambda _: None, parallel: int = PARALLEL
) -> TableManifest:
    """Reads all files; raises `StoreDamaged`, which names the missing and the damaged ones."""
    manifest = await read_manifest(folder)
    progress = RestoreProgress(files=len(manifest.files), pairs=manifest.pairs)
    wrong: list[str] = []

    async def check(file: TableBackupFile) -> None:
        try:
            async for page in _pages(folder, file):
                progress.raw_bytes += len(page.data)
        except (NotFound, StoreDamaged) as error:
            wrong.append(error.message)
        progress.finished += 1
        told(progress)

    await _side_by_side(manifest.files, check, parallel)
    if wrong:
        more = f"; and {len(wrong) - MISSING_SHOWN} more" if len(wrong) > MISSING_SHOWN else ""
        raise StoreDamaged(
            f"{len(wrong)} of {len(manifest.files)} files are not as they were written: "
            f"{'; '.join(sorted(wrong)[:MISSING_SHOWN])}{more}"
        )
    return manifest


async def restore(
    kv: AsyncKv,
    folder: BackupFolder,
    clock: Clock,
    *,
    parallel: int = PARALLEL,
    bytes_per_s: int | None = None,
    may_have_keys: bool = False,
    progress_file: str | None = None,
    told: OnRestoreProgress = lambda _: None,
) -> RestoreProgress:
    """Writes a backup into the table of the client's user, which must be empty.

    With `may_have_keys`, the table keeps its keys; those in the backup are overwritten.
    """
    manifest = await read_manifest(folder)
    incarnation = (await kv.partitions())[0].incarnation
    done = await _begun(folder, manifest, incarnation, progress_file)
    if not may_have_keys and not done.files and await _has_keys(kv):
        raise Conflict(
            "the table has keys already: restore into an empty one, or say that they may stay"
        )
    work = _Restore(kv, folder, clock, ByteRate(bytes_per_s), told, manifest, done, progress_file)
    left = [file for file in manifest.files if file.name not in done.files]
    work.tell()
    await _side_by_side(left, work.file, parallel)
    progress = work.progress
    if progress.restored + progress.expired != manifest.pairs:
        raise StoreDamaged(
            f"the files of {folder.uri} have {progress.restored + progress.expired} pairs, the "
            f"manifest says {manifest.pairs}"
        )
    if not may_have_keys:
        await _check_count(kv, progress)
    if progress_file is not None:
        await folder.beside(_remove, progress_file)
    return progress


class _Restore:
    def __init__(
        self,
        kv: AsyncKv,
        folder: BackupFolder,
        clock: Clock,
        pace: ByteRate,
        told: OnRestoreProgress,
        manifest: TableManifest,
        done: _Done,
        progress_file: str | None,
    ) -> None:
        self._kv = kv
        self._folder = folder
        self._clock = clock
        self._pace = pace
        self._told = told
        self._done = done
        self._progress_file = progress_file
        restored, expired, ending = [
            sum(column) for column in zip(*done.files.values(), strict=True)
        ] or [0, 0, 0]
        self.progress = RestoreProgress(
            files=len(manifest.files),
            finished=len(done.files),
            pairs=manifest.pairs,
            restored=restored,
            expired=expired,
            ending=ending,
        )

    def tell(self) -> None:
        self._told(self.progress)

    async def file(self, file: TableBackupFile) -> None:
        progress = self.progress
        mine = [0, 0, 0]
        async for page in _pages(self._folder, file):
            for place, count in enumerate(await self._write(page)):
                mine[place] += count
            progress.raw_bytes += len(page.data)
            self.tell()
            await self._pace.take(len(page.data))
        if sum(mine[:2]) != file.pairs:
            found = f"it has {sum(mine[:2])} pairs, not {file.pairs}"
            raise form.damaged(self._folder.place(file.name), found)
        self._done.files[file.name] = (mine[0], mine[1], mine[2])
        progress.finished += 1
        self.tell()
        if self._progress_file is not None:
            data = msgspec.json.encode(self._done)
            await self._folder.beside(_replace, self._progress_file, data)

    async def _write(self, page: Page) -> tuple[int, int, int]:
        from raftwood.zeppelin.client.arrow_rows import batch_of_page  # noqa: PLC0415 (an extra)

        batch = batch_of_page(page)
        rows = await self._folder.beside(_alive, batch, self._clock.wall_ns() // 1_000_000)
        if rows.num_rows:
            await self._kv.put_arrow(rows, ttl_ms="ttl_ms" if page.has_ends else None)
        ending = rows.num_rows - rows["ttl_ms"].null_count if page.has_ends else 0
        counts = rows.num_rows, page.count - rows.num_rows, ending
        progress = self.progress
        progress.restored += counts[0]
        progress.expired += counts[1]
        progress.ending += counts[2]
        return counts


async def _begun(
    folder: BackupFolder, manifest: TableManifest, incarnation: int, path: str | None
) -> _Done:
    """Returns the progress of a restore that was interrupted."""
    new = _Done(manifest=manifest.checksum, incarnation=incarnation)
    data = None if path is None else await folder.beside(_found, path)
    if data is None:
        return new
    try:
        done = msgspec.json.decode(data, type=_Done)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(f"{path} cannot be read: remove it to begin anew") from error
    if (done.manifest, done.incarnation) != (new.manifest, new.incarnation):
        raise InvalidInput(
            f"{path} is of another restore: give another file, or remove it to begin anew"
        )
    return done


def _alive(batch: Any, now_ms: int) -> "pyarrow.Table":
    """Returns the rows that have not expired, with the time that each has left."""
    import pyarrow  # noqa: PLC0415 (an extra)
    from pyarrow import compute  # noqa: PLC0415

    ends = batch["expires"].cast(pyarrow.int64())
    left = compute.subtract(ends, now_ms)
    table = pyarrow.table({"key": batch["key"], "value": batch["value"], "ttl_ms": left})
    return table.filter(compute.fill_null(compute.greater(left, 0), True))


async def _pages(folder: BackupFolder, file: TableBackupFile) -> AsyncIterator[Page]:
    place = folder.place(file.name)
    data = await folder.read(file.name)
    await folder.beside(form.check_file, data, file, place)
    pages = form.pages_in(data, place)
    while (page := await folder.beside(next, pages, None)) is not None:
        yield page


async def _side_by_side(
    files: list[TableBackupFile], work: Callable[[TableBackupFile], Any], parallel: int
) -> None:
    if parallel < 1:
        raise InvalidInput(f"{parallel} files at a time: give 1 or more")
    waiting = list(reversed(files))

    async def some() -> None:
        while waiting:
            await work(waiting.pop())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(parallel, len(files))):
                group.create_task(some())
    except* RaftwoodError as errors:
        raise errors.exceptions[0] from None


async def _has_keys(kv: AsyncKv) -> bool:
    async for _ in kv.scan(count=1):
        return True
    return False


async def _check_count(kv: AsyncKv, progress: RestoreProgress) -> None:
    """Raises if the table lacks restored keys; keys that expire may be gone already."""
    count = 0
    for place in await kv.partitions():
        async with await kv.checkpoint(place.number) as checkpoint:
            async for page in checkpoint.pages():
                count += page.count
    if not progress.restored - progress.ending <= count <= progress.restored:
        raise Conflict(
            f"the table has {count} keys after {progress.restored} were restored: somebody else "
            "writes to it"
        )


def _found(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _replace(path: str, data: bytes) -> None:
    with open(f"{path}.new", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)
