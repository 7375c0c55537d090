"""Whose bytes are these? What a tailer does about files that are renamed, cut, replaced and gone.

Observations go in, actions come out; no I/O, no clock. A file is its device and inode for as long
as the first bytes that were read of it stay the same:

- *Renamed*: read to its end, also while its writer still appends, then the file that has its path
  now. Until then it keeps the name under which it was found; after that, where a glob matches its
  new path, it has that one's.
- *Cut* (smaller than what was read of it, or another beginning, while it is held open): begun anew.
- *Inode used again* (another birth or beginning, found while it was not held open): another file.
- *Deleted*: read to its end through the open descriptor, then forgotten.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto

import msgspec

from raftwood.base.errors import InvalidConfiguration
from raftwood.clogs.tail.batch_maker import Forced
from raftwood.clogs.tail.checkpoints import FileCheckpoint, FileIdentity, FileLook, FoundFile
from raftwood.clogs.tail.followed_file import FollowedFile, ProducerOf
from raftwood.clogs.tail.settings import TailSettings

_REPLACED = "its inode is another file's by now"


class FileVerdict(Enum):
    """What an open file is to the one that is followed."""

    SAME = auto()
    CUT = auto()
    """The same file, with other contents."""
    OTHER = auto()
    """Another file under the same inode."""
    ELSEWHERE = auto()
    """The path leads to a file with another inode by now: the next scan tells."""


def judged(file: FollowedFile, look: FileLook, *, is_held: bool) -> FileVerdict:
    """`is_held`: the descriptor was open all the time since the file was last read."""
    if look.identity != file.identity:
        return FileVerdict.ELSEWHERE
    if file.birth_ns and look.birth_ns and file.birth_ns != look.birth_ns:
        return FileVerdict.OTHER
    if not file.head.begins(look.head):
        return FileVerdict.CUT if is_held else FileVerdict.OTHER
    return FileVerdict.CUT if look.size < file.read_to else FileVerdict.SAME


class RefuseFile(msgspec.Struct, frozen=True):
    """A file that cannot be followed, and why."""

    path: str
    reason: str


class ForgetFile(msgspec.Struct, frozen=True):
    """The file is of no interest any more; intents that it still has are of unknown fate."""

    file: FollowedFile
    reason: str


class CloseFile(msgspec.Struct, frozen=True):
    """Read to its end; it is known for a while in case it comes back."""

    file: FollowedFile


class BeginFile(msgspec.Struct, frozen=True):
    """A file that was not known before."""

    file: FollowedFile


class CheckFile(msgspec.Struct, frozen=True):
    """The file may be another one, which has got its inode: only a look into it tells."""

    file: FollowedFile


class MissFile(msgspec.Struct, frozen=True):
    """A file that has something left to ship cannot be found."""

    file: FollowedFile


Action = RefuseFile | ForgetFile | CloseFile | BeginFile | CheckFile | MissFile


def forced(file: FollowedFile, settings: TailSettings, *, now_ms: int, is_last: bool) -> Forced:
    """What of the end of a file is taken though more may come."""
    idle_ms = now_ms - file.grown_ms
    is_over = file.left_ms is not None and (
        now_ms - max(file.left_ms, file.grown_ms) >= settings.grace_ms
    )
    if is_last or is_over or idle_ms >= settings.partial_ms:
        return Forced.ALL
    multiline = settings.multiline
    if multiline is not None and idle_ms >= multiline.wait_ms:
        return Forced.LINES
    return Forced.NOTHING


def wants_reading(file: FollowedFile, force: Forced) -> bool:
    """Whether a read may bring something, or tell that the file was cut."""
    if file.resuming:
        return True
    if file.checked is None or file.checked.place != (file.read_to, file.size, file.mtime_ns):
        return True
    return file.size > file.read_to and force > file.checked.force


class Roster:
    """All files that are followed."""

    def __init__(self, settings: TailSettings, producer_of: ProducerOf) -> None:
        self._settings = settings
        self._producer_of = producer_of
        self._next_number = 1
        self.files: dict[int, FollowedFile] = {}
        self._by_identity: dict[FileIdentity, FollowedFile] = {}
        self._by_name: dict[str, list[FollowedFile]] = {}
        self._at: dict[str, FollowedFile] = {}
        """By the path where a file was seen last; the one that was seen there last."""
        self._refused: dict[str, None] = {}
        self._scans = 0
        self.touched: dict[str, None] = {}
        """Names of files that a scan found changed, or lost; for the driver to take."""

    # From the state and from scans

    def restore(self, number: int, checkpoint: FileCheckpoint, *, now_ms: int) -> list[Action]:
        """A file that an earlier life followed, in order of numbers; it is to be found again."""
        actions: list[Action] = []
        before = self._by_identity.get(checkpoint.identity)
        if before is not None:
            # That life was ended before it could forget the file whose inode was used again.
            actions.append(self._forget(before, _REPLACED))
        producer = self._producer_of(number, checkpoint.identity)
        file = FollowedFile(number, checkpoint, producer, now_ms=now_ms)
        with suppress(InvalidConfiguration):  # the rule may be another one by now
            file.next_name = self._settings.name_of(file.home)
        self._next_number = max(self._next_number, number + 1)
        self._add(file)
        return actions

    def wanted(self) -> list[tuple[str, int]]:
        """Folders and inodes of files that no glob matches, and that nobody holds open: they may
        have been renamed.
        """
        return [
            (file.folder, file.identity.inode)
            for file in self.files.values()
            if not file.was_seen
            or (file.left_ms is not None and not file.is_held and file.rested_ms is None)
        ]

    def scanned(self, found: Iterable[FoundFile], *, now_ms: int) -> list[Action]:
        """What a scan saw. Matches come before what was looked for; one file counts once."""
        actions: list[Action] = []
        seen: dict[FileIdentity, FoundFile] = {}
        for each in found:
            seen.setdefault(each.identity, each)
        unseen = {
            (file.path, file.identity.inode): file
            for file in self.files.values()
            if not file.was_seen
        }
        for identity, each in seen.items():
            file = self._by_identity.get(identity)
            if file is None and (file := unseen.get((each.path, identity.inode))):
                self._take_device(file, identity)
            if file is not None:
                self._see(file, each, now_ms)
            elif each.is_matched:
                actions += self._begin(each, now_ms)
        for file in list(self.files.values()):
            if file.identity not in seen:
                actions += self._miss(file, now_ms)
        self._scans += 1
        return actions

    def noticed(
        self,
        visited: Iterable[tuple[str, FoundFile | None]],
        origins: Mapping[str, str],
        *,
        now_ms: int,
    ) -> list[Action]:
        """What is at some paths now, of which those with an origin had another one before: such a
        file is followed though no glob has its path any more.
        """
        actions: list[Action] = []
        seen: dict[FileIdentity, FoundFile] = {}
        for path, found in visited:
            before = self._at.get(path)
            if before is not None and (found is None or found.identity != before.identity):
                del self._at[path]
                before.is_matched = False
                if before.left_ms is None and before.rested_ms is None:
                    self._leave(before, now_ms)
            if found is not None:
                other = seen.setdefault(found.identity, found)
                file = self._by_identity.get(found.identity)
                # A file that has several paths keeps the one that it had.
                if file is not None and found.path == file.path and other is not found:
                    seen[found.identity] = found
        for identity, found in seen.items():
            file = self._by_identity.get(identity)
            origin = origins.get(found.path, "")
            is_wanted = found.is_matched or bool(origin)
            is_doubtful = is_wanted and file is not None and _may_be_other(file, found, origin)
            if file is not None and is_doubtful and not file.read_to and not file.intents:
                # Nothing is known of it but the inode, which may be another file's by now.
                actions.append(self._forget(file, ""))
                file = None
            if file is not None:
                file.origin = origin
                self._see(file, found, now_ms)
                if is_doubtful:
                    actions.append(CheckFile(file))
            elif is_wanted:
                actions += self._begin(found, now_ms, home=origin)
        return actions

    def path_of(self, identity: FileIdentity) -> str:
        """Where the file was seen last; empty where it is not followed."""
        file = self._by_identity.get(identity)
        return "" if file is None else file.path

    def at(self, path: str) -> FollowedFile | None:
        """The file that was seen there last."""
        return self._at.get(path)

    def replace(self, file: FollowedFile, *, now_ms: int) -> list[Action]:
        """The inode is another file's now: the one that was followed is gone."""
        actions: list[Action] = [self._forget(file, _REPLACED)]
        found = FoundFile(file.path, file.identity, file.size, file.mtime_ns)
        if file.is_matched or file.origin:
            actions += self._begin(found, now_ms, home=file.origin)
        return actions

    # Turns

    def of_name(self, name: str) -> Sequence[FollowedFile]:
        return self._by_name.get(name, ())

    def turn(self, name: str) -> list[FollowedFile]:
        """The files of one name that may be read now, in order.

        Those that lost the name come first: what is in them is older. The next waits until they
        are settled, unless they are overdue.
        """
        ready: list[FollowedFile] = []
        files = [file for file in self.of_name(name) if file.rested_ms is None]
        for file in files:
            if file.left_ms is not None:
                ready.append(file)
                if not file.is_overdue:
                    return ready
        live = [file for file in files if file.left_ms is None]
        return ready + sorted(live, key=lambda file: file.served)

    def settle(self, file: FollowedFile, *, now_ms: int, is_last: bool = False) -> list[Action]:
        """Whether a file that lost its name is done with; `is_last` waits for nobody. While a lane
        of its name runs, nobody asks.
        """
        settings = self._settings
        if file.rested_ms is not None:
            return []
        if file.left_ms is None:
            if file.next_name != file.name and not file.intents:
                self._call(file, file.next_name)
            return []
        if not file.is_at_end:
            # One that cannot be read holds nobody up for ever.
            file.is_overdue |= bool(file.problem) and now_ms - file.left_ms >= settings.grace_ms_max
            return []
        if file.caught_up_ms is None:
            file.caught_up_ms = now_ms
        if now_ms - max(file.left_ms, file.grown_ms) < settings.grace_ms and not is_last:
            file.is_overdue |= now_ms - file.caught_up_ms >= settings.grace_ms_max
            return []
        if file.is_matched:
            return self._rename(file)
        if not file.links:
            return [self._forget(file, "")]
        file.rested_ms = now_ms
        return [CloseFile(file)]

    def _rename(self, file: FollowedFile) -> list[Action]:
        """It has the name of its path from now on."""
        try:
            name = self._settings.name_of(file.path)
        except InvalidConfiguration as error:
            return [*self._refuse(file.path, error.message), self._forget(file, "")]
        self._call(file, name)
        file.home = file.path
        file.stay()
        return []

    def _call(self, file: FollowedFile, name: str) -> None:
        self._by_name[file.name].remove(file)
        if not self._by_name[file.name]:
            del self._by_name[file.name]
        file.name = file.next_name = name
        self._by_name.setdefault(name, []).append(file)
        self.touched[name] = None

    # Parts of a scan

    def _take_device(self, file: FollowedFile, identity: FileIdentity) -> None:
        """Devices may have other numbers after a restart; path and inode stay."""
        del self._by_identity[file.identity]
        file.identity = identity
        self._by_identity[identity] = file

    def _begin(self, found: FoundFile, now_ms: int, *, home: str = "") -> Iterator[Action]:
        """`home` is the path of a glob that it had before."""
        home = home or found.path
        if len(self.files) >= self._settings.files_max:
            yield from self._refuse(
                found.path, f"{len(self.files)} files are followed already: raise files_max"
            )
            return
        try:
            name = self._settings.name_of(home)
        except InvalidConfiguration as error:
            yield from self._refuse(found.path, error.message)
            return
        number = self._next_number
        self._next_number += 1
        checkpoint = FileCheckpoint(
            identity=found.identity,
            path=found.path,
            folder=found.path.rpartition("/")[0],
            name=name,
            home=home,
        )
        producer = self._producer_of(number, found.identity)
        file = FollowedFile(number, checkpoint, producer, now_ms=now_ms)
        file.rested_ms = None
        file.found(found, now_ms=now_ms)
        self._add(file)
        if home != found.path:
            self._leave(file, now_ms)
        yield BeginFile(file)

    def _refuse(self, path: str, reason: str) -> Iterator[Action]:
        """Told once."""
        if path not in self._refused:
            if len(self._refused) >= self._settings.files_max:
                self._refused.clear()
            self._refused[path] = None
            yield RefuseFile(path, reason)

    def _see(self, file: FollowedFile, found: FoundFile, now_ms: int) -> None:
        if file.rested_ms is not None:
            file.rested_ms = None
            file.grown_ms = now_ms
        if self._at.get(file.path) is file:
            del self._at[file.path]
        self._at[found.path] = file
        if file.found(found, now_ms=now_ms) or file.checked is None:
            self.touched[file.name] = None
        if found.path == file.home and found.is_matched:
            file.stay()
        elif file.left_ms is None:
            self._leave(file, now_ms)

    def _leave(self, file: FollowedFile, now_ms: int) -> None:
        file.left_ms = now_ms
        self.touched[file.name] = None

    def _miss(self, file: FollowedFile, now_ms: int) -> Iterator[Action]:
        file.is_matched = False
        if file.rested_ms is not None:
            if now_ms - file.rested_ms >= self._settings.forget_ms:
                yield self._forget(file, "" if file.is_at_end else "it cannot be found any more")
            elif not self._scans and not file.is_at_end:
                yield MissFile(file)
        elif file.left_ms is None:
            self._leave(file, now_ms)  # it is looked for under other names before the next scan
        elif not file.is_held:
            file.rested_ms = now_ms
            if not file.is_at_end:
                yield MissFile(file)

    def _add(self, file: FollowedFile) -> None:
        self.files[file.number] = file
        self._by_identity[file.identity] = file
        self._at[file.path] = file
        self._by_name.setdefault(file.name, []).append(file)
        self.touched[file.name] = None

    def _forget(self, file: FollowedFile, reason: str) -> ForgetFile:
        file.is_forgotten = True
        del self.files[file.number]
        if self._by_identity.get(file.identity) is file:
            del self._by_identity[file.identity]
        if self._at.get(file.path) is file:
            del self._at[file.path]
        same = self._by_name[file.name]
        same.remove(file)
        if not same:
            del self._by_name[file.name]
        return ForgetFile(file, reason)


def _may_be_other(file: FollowedFile, found: FoundFile, origin: str) -> bool:
    """Whether its inode may have been used again since it was closed."""
    has_come_otherwise = file.path not in (found.path, origin)
    return not file.is_held and (has_come_otherwise or file.rested_ms is not None)
