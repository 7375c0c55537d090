"""`Tailer`: follows files that match globs, and delivers their lines in batches, each once.

    tailer = await Tailer.start(environment, settings, folder=…, files=MachineFiles(), delivering=…)
    …
    await tailer.close()

The state in the folder says how far each file is stored, and which batches may have been sent. Read
`rules` for what happens to files, `reader` for how batches are made, `lanes` for their delivery.
"""

import asyncio
import heapq
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from msgspec.structs import replace

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, InvalidConfiguration, InvariantViolated, Overloaded
from raftwood.base.logs import get_logger
from raftwood.clogs.frames import PRODUCER_BYTES
from raftwood.clogs.masking import masking_of
from raftwood.clogs.tail.batch_maker import BatchMaker
from raftwood.clogs.tail.checkpoints import STATE_SETTINGS, FileCheckpoints, FileHead, FileIdentity
from raftwood.clogs.tail.followed_file import FileStatus, FollowedFile, TailCounters, TailStatus
from raftwood.clogs.tail.lanes import TailLanes
from raftwood.clogs.tail.reader import FileReader, OpenFiles
from raftwood.clogs.tail.rules import (
    Action,
    BeginFile,
    CheckFile,
    CloseFile,
    FileVerdict,
    ForgetFile,
    MissFile,
    RefuseFile,
    Roster,
)
from raftwood.clogs.tail.seams import BatchDeliverer, FolderEvents, LineMasking, TailFiles
from raftwood.clogs.tail.settings import TailSettings
from raftwood.clogs.tail.watch import Globs, PathsToVisit
from raftwood.disk.store import Store

_log = get_logger("tail")
_LISTED_MAX: Final = 100
_CLUSTER: Final = "ship"
_SCAN_SHARE: Final = 10
"""The largest share of the time that scans may take."""
_SOON_SHARE: Final = 10
"""Files that were cut before are looked at so many times as often as others."""


class Tailer:
    """One tailer; call `start`, and `close` when done. It owns its files and its state."""

    def __init__(
        self,
        environment: Environment,
        settings: TailSettings,
        store: Store,
        *,
        files: TailFiles,
        delivering: BatchDeliverer,
        masking: LineMasking | None,
        watching: FolderEvents | None,
    ) -> None:
        self._settings = settings
        self._watching = watching
        self._store = store
        self._files = files
        self._life = environment.random.randbytes(PRODUCER_BYTES)
        self._checkpoints = FileCheckpoints(store.log)
        self._rules = [settings.line_rules]
        """The present rules of batches, and those of unacked batches of an earlier life."""
        self.counters = TailCounters()
        self._roster = Roster(settings, self._producer_of)
        self._open_files = OpenFiles(files, limit=settings.open_files_max, judge=self._judge)
        self._reader = FileReader(
            environment,
            settings,
            files=files,
            open_files=self._open_files,
            maker=BatchMaker(settings, masking),
            checkpoints=self._checkpoints,
            counters=self.counters,
        )
        self._lanes = TailLanes(
            environment,
            settings,
            roster=self._roster,
            reader=self._reader,
            delivering=delivering,
            checkpoints=self._checkpoints,
            counters=self.counters,
        )
        self._due: dict[str, None] = {}
        """Names to look at in the next turn."""
        self._globs = Globs(settings.paths, settings.exclude)
        self._noticed = PathsToVisit(self._globs)
        self._links: dict[str, str] = {}
        """The targets of paths that are symbolic links."""
        self._scanned_because = "they are not watched"
        self._scan_at_ms = self._scan_from_ms = 0
        """When the next scan is due, and the earliest time of one before, if it is needed."""
        self._visit_at_ms = self._visit_soon_at_ms = 0
        """The earliest time at which files that were written to may be visited again."""
        self._scans = 0
        self._woken = asyncio.Event()
        self._is_stopping = False
        self._running: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: TailSettings,
        *,
        folder: str,
        files: TailFiles,
        delivering: BatchDeliverer,
        masking: LineMasking | None = None,
        watching: FolderEvents | None = None,
    ) -> "Tailer":
        """Follows files, with the state in `folder`. Raises the errors of `Store.open`. The tailer
        closes the files and the watch.
        """
        store = await Store.open(
            environment, folder, cluster=_CLUSTER, store=1, settings=STATE_SETTINGS
        )
        try:
            tailer = cls(
                environment,
                settings,
                store,
                files=files,
                delivering=delivering,
                masking=masking,
                watching=watching,
            )
            tailer._restore()
        except BaseException:
            await store.close()
            raise
        if watching is not None:
            watching.begin(tailer._woken.set)
        tailer._running = asyncio.create_task(tailer._run(), name="tailer")
        return tailer

    async def close(self) -> None:
        """Stops reading, waits a while for what is under way, and makes the state durable."""
        self._is_stopping = self._lanes.is_stopping = True
        self._woken.set()
        running = self._running
        try:
            if running is not None:
                await asyncio.wait([running], timeout=self._settings.close_ms / 1000)
                running.cancel()
                await asyncio.wait([running])
                if not running.cancelled():
                    running.result()
        finally:
            try:
                await self._files.end()  # first: one of its threads may be adding watches
            finally:
                if self._watching is not None:
                    self._watching.end()
            try:
                await self._store.close()
            except DiskFull as error:
                _log.warning("the last state was not written", reason=error.message)

    async def drain(self) -> list[str]:
        """Ships what is in the files now, also last lines without a newline. Returns the problems
        of files that are held up.
        """
        self._reader.is_last = True
        scans = self._scans + 2  # one may be under way
        while not self._is_drained(scans):
            self._woken.set()
            await asyncio.sleep(self._settings.poll_ms / 4000)
            if self.running.done():
                break
        return [file.problem for file in self._roster.files.values() if file.problem]

    @property
    def running(self) -> asyncio.Task[None]:
        """Done when the tailer is closed; before that only after a bug, with its exception."""
        if self._running is None:
            raise InvariantViolated("the tailer was not started")
        return self._running

    def status(self) -> TailStatus:
        files = list(self._roster.files.values())
        ranked = heapq.nlargest(_LISTED_MAX, files, key=_rank)
        return TailStatus(
            files=len(files),
            open_files=len(self._open_files),
            missing_files=sum(not file.was_seen for file in files),
            behind_bytes=sum(file.behind_bytes for file in files),
            scanned_because=self._scanned_because,
            counters=self.counters,
            file_list=[_status(file) for file in ranked],
        )

    # The driver

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while not self._is_stopping:
                self._woken.clear()
                self._take_events()
                if self._is_scan_due(_now_ms()) or self._reader.is_last:
                    await self._scan()
                await self._visit(self._to_visit(_now_ms()))
                await self._look()
                self._turn(group)
                try:
                    async with asyncio.timeout(self._rest_ms(_now_ms()) / 1000):
                        await self._woken.wait()
                except TimeoutError:
                    continue

    def _is_scan_due(self, now_ms: int) -> bool:
        is_needed = self._noticed.is_unclear or any(
            file.left_ms is not None and not file.is_held for file in self._due_files()
        )
        return now_ms >= (self._scan_from_ms if is_needed else self._scan_at_ms)

    def _rest_ms(self, now_ms: int) -> int:
        """Returns how long nothing is to be done, unless something happens."""
        noticed, poll_ms = self._noticed, self._settings.poll_ms
        if self._scanned_because or self._due or noticed.is_unclear:
            poll_ms = min(poll_ms, max(1, self._scan_at_ms - now_ms))
        else:
            poll_ms = max(1, self._scan_at_ms - now_ms)
        if noticed.written:
            poll_ms = min(poll_ms, max(1, self._visit_soon_at_ms - now_ms))
        return poll_ms

    async def _scan(self) -> None:
        settings, began_ms = self._settings, _now_ms()
        self._noticed.is_unclear = False
        if self._watching is not None:
            # First, because the watch then reports changes during the scan.
            because = await self._watching.follow(settings.paths, self._links)
            if because and because != self._scanned_because:
                _log.warning("files are scanned for changes", reason=because)
            self._scanned_because = because
        found = await self._files.scan(settings.paths, settings.exclude)
        links = {each.path: each.target for each in found if each.target}
        if self._watching is not None and links != self._links:
            self._links, self._noticed.is_unclear = links, True
        wanted = self._roster.wanted()
        if wanted:
            found += await self._files.find(wanted)
        begun = self._carry_out(self._roster.scanned(found, now_ms=_now_ms()))
        if not self._scans:
            await self._begin(begun)
        for file in begun:
            # At once: a file that is deleted can be read only if it is open.
            await self._open(file)
        self._take_events()
        self._noticed.scanned()
        self._scans += 1
        # With very many files, most of the time must be left for other work.
        share_ms = _SCAN_SHARE * (_now_ms() - began_ms)
        self._scan_from_ms = began_ms + max(settings.scan_ms, share_ms)
        self._scan_at_ms = self._scan_from_ms
        if not self._scanned_because:
            self._scan_at_ms = max(began_ms + settings.rescan_ms, self._scan_from_ms)

    # The events of the watch

    def _take_events(self) -> None:
        if self._watching is not None:
            self._noticed.add(self._watching.take())
            missed = self._noticed.missed_files
            if missed != self.counters.missed_files:
                _log.error("files were deleted before they could be opened", files=missed)
                self.counters.missed_files = missed

    def _to_visit(self, now_ms: int) -> dict[str, str]:
        """Returns paths, with the paths by which globs matched their files before."""
        visits, written = self._noticed.take_named(), self._noticed.written
        poll_ms = self._settings.poll_ms
        if written and now_ms >= self._visit_at_ms:
            visits = {**dict.fromkeys(written, ""), **visits}
            written.clear()
            self._visit_at_ms = now_ms + poll_ms
            self._visit_soon_at_ms = now_ms + poll_ms // _SOON_SHARE
        elif written and now_ms >= self._visit_soon_at_ms:
            # What is read of them before they are cut again is not lost.
            soon = [path for path in written if (file := self._roster.at(path)) and file.cuts]
            for path in soon:
                del written[path]
                visits.setdefault(path, "")
            self._visit_soon_at_ms = now_ms + max(1, poll_ms // _SOON_SHARE)
        return {
            path: origin
            for path, origin in visits.items()
            if origin or self._roster.at(path) or self._globs.matches(path)
        }

    async def _visit(self, origins: Mapping[str, str]) -> None:
        """Visits paths to see what is there."""
        if not origins:
            return
        visited = dict(zip(origins, await self._files.visit([*origins]), strict=True))
        # Check also the known path of a file with several paths, or of one that was just renamed.
        known = (self._roster.path_of(each.identity) for each in visited.values() if each)
        others = [path for path in dict.fromkeys(known) if path and path not in visited]
        if others:
            visited |= zip(others, await self._files.visit(others), strict=True)
        for path, found in visited.items():
            if found is not None:
                self._noticed.visited(path)
                if found.target and self._links.get(path) != found.target:
                    self._noticed.is_unclear = True  # another folder is to be watched
                if not self._globs.matches(path):
                    visited[path] = replace(found, is_matched=False)
        begun = self._carry_out(self._roster.noticed(visited.items(), origins, now_ms=_now_ms()))
        for file in begun:
            await self._open(file)
            if file.is_forgotten and (other := self._roster.at(file.path)) is not None:
                await self._open(other)

    async def _begin(self, begun: list[FollowedFile]) -> None:
        """Saves the rules for lines before any intent names them; on the first run also the files
        that exist, if these are begun at the end.
        """
        checkpoints = {}
        if self._checkpoints.is_new:
            if self._settings.start == "end":
                for file in begun:
                    await self._open(file, to_end=True)
            checkpoints = {file.number: file.checkpoint() for file in begun if file.offset}
        while True:
            try:
                await self._checkpoints.begin(checkpoints, self._rules)
            except (DiskFull, Overloaded) as error:
                _log.warning("the state cannot be written", reason=error.message)
                await asyncio.sleep(self._settings.retry_ms / 1000)
            else:
                return

    async def _open(self, file: FollowedFile, *, to_end: bool = False) -> None:
        try:
            handle = await self._open_files.hold(file)
            if handle is None:
                return
            try:
                if to_end and not file.offset:
                    _, look = await self._files.read(handle, 0, 0)
                    file.offset = file.read_to = file.size = look.size
                    file.head = FileHead.of(look.head, min(len(look.head), look.size))
            finally:
                self._open_files.done(file)
        except FileNotFoundError:
            return
        except OSError as error:
            self._reader.trouble(file, f"{file.path} cannot be read: {error.strerror}")

    def _due_files(self) -> Iterable[FollowedFile]:
        return (
            file
            for name in self._due
            for file in self._roster.of_name(name)
            if file.rested_ms is None
        )

    async def _look(self) -> None:
        held = self._open_files.all()
        if not self._scanned_because:
            # The watch reports the others; these may be in other folders by now, or in none.
            left = {file.number for file in self._due_files() if file.left_ms is not None}
            held = [each for each in held if each[0].number in left] if left else []
        if not held:
            return
        looks = await self._files.look([handle for _, handle in held])
        now_ms = _now_ms()
        for (file, _), look in zip(held, looks, strict=True):
            if look is None or look.identity != file.identity or not file.is_held:
                continue
            file.links = look.links
            if file.looked(look.size, look.mtime_ns, now_ms=now_ms):
                self._due[file.name] = None

    def _turn(self, group: asyncio.TaskGroup) -> None:
        now_ms = _now_ms()
        self._due |= self._roster.touched
        self._roster.touched.clear()
        for name in list(self._due):
            if self._lanes.is_running(name):
                continue
            for file in list(self._roster.of_name(name)):
                actions = self._roster.settle(file, now_ms=now_ms, is_last=self._reader.is_last)
                self._carry_out(actions)
            ready = self._roster.turn(name)
            if any(self._reader.has_work(file, now_ms=now_ms) for file in ready):
                self._lanes.wake(name, group)
            elif not any(_is_waiting(file) for file in self._roster.of_name(name)):
                del self._due[name]

    def _carry_out(self, actions: Iterable[Action]) -> list[FollowedFile]:
        """Carries out actions; returns the files that must be opened at once."""
        begun = []
        for action in actions:
            match action:
                case BeginFile(file) | CheckFile(file):
                    begun.append(file)
                case CloseFile(file):
                    self._open_files.release(file)
                case ForgetFile(file, reason):
                    self._forget(file, reason)
                case MissFile(file):
                    _log.error("a file that is not shipped cannot be found", file=file.path)
                case RefuseFile(path, reason):
                    self.counters.refused_files += 1
                    _log.warning("a file is not followed", file=path, reason=reason)
        return begun

    def _forget(self, file: FollowedFile, reason: str) -> None:
        self._open_files.release(file)
        self._reader.give_up(file, reason)
        if reason and file.size > file.read_to:
            self.counters.cut_bytes += file.size - file.read_to
            _log.error("a file is lost", file=file.path, reason=reason, unread=file.behind_bytes)
        try:
            self._checkpoints.drop(file.number)
        except (DiskFull, Overloaded):
            return  # it is found again after a restart, and forgotten again

    def _judge(self, file: FollowedFile, verdict: FileVerdict) -> bool:
        match verdict:
            case FileVerdict.CUT:
                self._reader.begin_anew(file)
                return True
            case FileVerdict.OTHER:
                self._carry_out(self._roster.replace(file, now_ms=_now_ms()))
            case _:
                # The path leads elsewhere: the next scan shows where the file is.
                file.retry_at_ms = _now_ms() + self._settings.scan_ms
        return False

    # Parts

    def _restore(self) -> None:
        now_ms = _now_ms()
        found = self._checkpoints.load()
        named = {intent.rules for each in found.values() for intent in each.intents}
        for rules in self._checkpoints.rules():
            if rules.digest in named and rules not in self._rules:
                self._rules.append(rules)
                # If this program no longer has such masks, the files of these batches wait.
                with suppress(InvalidConfiguration, ValueError):
                    masking = masking_of(rules.masks, rules.mask_rules)
                    maker = BatchMaker(self._settings.under(rules), masking)
                    self._reader.makers[maker.rules] = maker
        for number, checkpoint in found.items():
            self._carry_out(self._roster.restore(number, checkpoint, now_ms=now_ms))

    def _producer_of(self, number: int, identity: FileIdentity) -> bytes:
        """Returns an id of this life, file and number: an inode used again gets another one."""
        text = f"{number} {identity.device} {identity.inode}".encode()
        return blake2b(text, key=self._life, digest_size=PRODUCER_BYTES).digest()

    def _is_drained(self, scans: int) -> bool:
        return (
            self._scans >= scans
            and not self._lanes.running
            and all(
                file.is_at_end or file.problem
                for file in self._roster.files.values()
                if file.rested_ms is None
            )
        )


def _is_waiting(file: FollowedFile) -> bool:
    """Whether the passing of time alone may change its state."""
    return file.rested_ms is None and (
        file.left_ms is not None or not file.is_at_end or bool(file.retry_at_ms)
    )


def _rank(file: FollowedFile) -> tuple[bool, int]:
    """Files with a problem come first: a long list is cut."""
    return bool(file.problem or file.refusal), file.behind_bytes


def _status(file: FollowedFile) -> FileStatus:
    return FileStatus(
        name=file.name,
        path=file.path,
        size=file.size,
        offset=file.offset,
        behind_bytes=file.behind_bytes,
        lines=file.counters.lines,
        bytes=file.counters.bytes,
        problem=file.problem or file.refusal,
    )


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
