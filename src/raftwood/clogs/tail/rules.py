"""The rules of a tailer for files that are renamed, cut, replaced and gone.

Observations go in, actions come out; no I/O, no clock. The danger is to take the bytes of one file
for another's: then lines are skipped, or shipped twice under other names. A path does not tell,
since rotation gives it to another file every night. An inode does not tell alone, since file
systems give a freed one to the next file at once. So a file is its device and inode for as long as
the first bytes that were read of it stay the same (planted bugs "an inode that is used again is
taken for what it was" and "an inode that is used again unnoticed" in
`tests/kits/clogs/tail/mutants.py`):

- *Renamed*: read to its end, also while its writer still appends, then the file that has its path
  now. In any other order the new file's lines come in front of the old one's last ones (planted
  bugs "a successor that does not wait" and "a rotated file that is dropped early"). Until then it
  keeps the name under which it was found; after that, where a glob matches its new path, it has
  that one's.
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
    """How an open file relates to the one that is followed."""

    SAME = auto()
    CUT = auto()
    """The same file, with other contents."""
    OTHER = auto()
    """Another file under the same inode."""
    ELSEWHERE = auto()
    """The path leads to a file with another inode by now: the next scan tells."""


def judged(file: FollowedFile, look: FileLook, *, is_held: bool) -> FileVerdict:
    """Compares a look into a file with the one that is followed.

    `is_held`: the descriptor was open all the time since the file was last read, so that the inode
    cannot have been used again. Another beginning then means that the file was cut and written
    anew; its intents are about bytes that are gone.
    """
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
    """The file is done with. Batches of intents that it still has may be stored or not: their bytes
    are gone, and they cannot be made again."""

    file: FollowedFile
    reason: str


class CloseFile(msgspec.Struct, frozen=True):
    """The file was read to its end; it is known for a while in case it comes back."""

    file: FollowedFile


class BeginFile(msgspec.Struct, frozen=True):
    """A file that was not known before."""

    file: FollowedFile


class CheckFile(msgspec.Struct, frozen=True):
    """The inode may be another file's by now: only a look into it tells."""

    file: FollowedFile


class MissFile(msgspec.Struct, frozen=True):
    """A file that has something left to ship cannot be found."""

    file: FollowedFile


Action = RefuseFile | ForgetFile | CloseFile | BeginFile | CheckFile | MissFile


def forced(file: FollowedFile, settings: TailSettings, *, now_ms: int, is_last: bool) -> Forced:
    """Returns what is taken from the end of a file although more may come.

    A line without its newline is half a line, and is shipped as one only when its writer has been
    silent for long: a write that is seen half-way would make two lines of one
    (`test_a_line_without_its_newline_waits_until_it_is_forced`).
    """
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
    """Whether a read may bring something, or show that the file was cut."""
    if file.resuming:
        return True
    if file.checked is None or file.checked.place != (file.read_to, file.size, file.mtime_ns):
        return True
    return file.size > file.read_to and force > file.checked.force


class Roster:
    """All files that are followed, by inode, by name and by path."""

    def __init__(self, settings: TailSettings, producer_of: ProducerOf) -> None:
        self._settings = settings
        self._producer_of = producer_of
        self._next_number = 1
        self.files: dict[int, FollowedFile] = {}
        self._by_identity: dict[FileIdentity, FollowedFile] = {}
        self._by_name: dict[str, list[FollowedFile]] = {}
        self._at: dict[str, FollowedFile] = {}
        """The file that was last seen at each path."""
        self._refused: dict[str, None] = {}
        self._scans = 0
        self.touched: dict[str, None] = {}
        """Names of files that a scan found changed, or lost; for the driver to take."""

    # From the state and from scans

    def restore(self, number: int, checkpoint: FileCheckpoint, *, now_ms: int) -> list[Action]:
        """Takes over a file that an earlier process followed, in order of numbers."""
        actions: list[Action] = []
        before = self._by_identity.get(checkpoint.identity)
        if before is not None:
            # That process was killed before it could forget the file whose inode was used again:
            # the later one has it (`test_of_two_files_with_one_inode_the_later_one_is_restored`).
            actions.append(self._forget(before, _REPLACED))
        producer = self._producer_of(number, checkpoint.identity)
        file = FollowedFile(number, checkpoint, producer, now_ms=now_ms)
        with suppress(InvalidConfiguration):  # The rule for names may have changed since.
            file.next_name = self._settings.name_of(file.home)
        self._next_number = max(self._next_number, number + 1)
        self._add(file)
        return actions

    def wanted(self) -> list[tuple[str, int]]:
        """Returns folders and inodes of files that no glob matches and that are not open: they may
        have been renamed.
        """
        return [
            (file.folder, file.identity.inode)
            for file in self.files.values()
            if not file.was_seen
            or (file.left_ms is not None and not file.is_held and file.rested_ms is None)
        ]

    def scanned(self, found: Iterable[FoundFile], *, now_ms: int) -> list[Action]:
        """Takes what a scan saw. Matches come before files that were looked for by inode; a file
        counts once, however many globs and links lead to it
        (`test_a_file_is_followed_once_however_many_paths_lead_to_it`)."""
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
        """Takes what is at some paths now. A path with an origin was renamed: its file is followed
        though no glob matches it any more, or the lines that were written just before the rename
        would be lost (planted bug "a move whose origin is forgotten").
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
                # Nothing was read of the file, so that no beginning can tell it from the next one
                # with the inode: begun anew, nothing is lost
                # (`test_an_inode_of_which_nothing_was_read_is_begun_anew_at_another_path`).
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
        """Returns the path where the file was last seen; empty if it is not followed."""
        file = self._by_identity.get(identity)
        return "" if file is None else file.path

    def at(self, path: str) -> FollowedFile | None:
        """Returns the file that was last seen at a path."""
        return self._at.get(path)

    def replace(self, file: FollowedFile, *, now_ms: int) -> list[Action]:
        """Forgets a file whose inode is another's now, and begins that one."""
        actions: list[Action] = [self._forget(file, _REPLACED)]
        found = FoundFile(file.path, file.identity, file.size, file.mtime_ns)
        if file.is_matched or file.origin:
            actions += self._begin(found, now_ms, home=file.origin)
        return actions

    # Turns

    def of_name(self, name: str) -> Sequence[FollowedFile]:
        return self._by_name.get(name, ())

    def turn(self, name: str) -> list[FollowedFile]:
        """Returns the files of one name that may be read now, in order.

        Files that lost the name come first: what is in them is older. The next waits until they
        are settled, unless they are overdue: a writer that never lets go of the old file must not
        stop the new one for ever
        (`test_a_file_that_keeps_growing_without_its_name_holds_its_successor_up_only_so_long`).
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
        """Settles a file that lost its name, once it is done with; `is_last` waits for no writer.

        Not called while a lane of its name runs: a batch that is under way belongs to the name that
        the file had (`test_a_renamed_file_that_is_under_way_is_not_settled`).
        """
        settings = self._settings
        if file.rested_ms is not None:
            return []
        if file.left_ms is None:
            if file.next_name != file.name and not file.intents:
                self._call(file, file.next_name)
            return []
        if not file.is_at_end:
            # A file that cannot be read must not hold its successor up for ever.
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
        """Gives a file the name of its present path."""
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
        """Takes over another device number: after a reboot disks are numbered anew, path and inode
        stay. Without this every file would be shipped again from its beginning."""
        del self._by_identity[file.identity]
        file.identity = identity
        self._by_identity[identity] = file

    def _begin(self, found: FoundFile, now_ms: int, *, home: str = "") -> Iterator[Action]:
        """Begins a file; `home` is the path by which a glob matched it before it was renamed."""
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
        """Refuses a path, and logs it once."""
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
            # The next scan looks for its inode under other names before it counts as gone.
            self._leave(file, now_ms)
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
