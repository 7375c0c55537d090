"""`FolderWatch`: notices changes in folders by inotify, which the event loop itself reads.

It watches all events of folders that may have files of the globs; above them, only those that may
make other folders match. Frequent events are read less often, and then together.

It needs the plain events of the kernel, as inotify_simple provides them: in order, with the cookie
that pairs the two names of a rename, with the notice of dropped events, and for folders that come
and go. watchfiles provides sets of paths, from a thread that wakes up every few milliseconds: to
notice a file within 2 ms it takes 1.4 % of a core when nothing happens; inotify takes 0.2 ms and
nothing.
"""

import asyncio
import errno
import glob
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from raftwood.clogs.tail.files import MachineFiles
from raftwood.clogs.tail.watch import EventKind, WatchEvent, is_matched

if TYPE_CHECKING:
    from inotify_simple import Event, INotify

_MODIFY: Final = 0x2
_MOVED_FROM: Final = 0x40
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_DELETE: Final = 0x200
_MOVE_SELF: Final = 0x800
_Q_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_FOLDERS: Final = 0x1000000
_MASK_ADD: Final = 0x20000000
_IS_FOLDER: Final = 0x40000000
_NAMES: Final = _CREATE | _MOVED_FROM | _MOVED_TO | _DELETE | _MOVE_SELF
_FOLDERS: Final = _CREATE | _MOVED_FROM | _MOVED_TO | _DELETE

_PAUSE_S: Final = 0.005
_PAUSE_S_MAX: Final = 0.2
_SHARE: Final = 10
"""The largest share of the time that events may take."""
_EVENTS_MAX: Final = 1 << 16
"""Read and not taken; more wait in the kernel, which reports when it has to drop some."""
_FOLDERS_MAX: Final = 100_000

_LOCAL: Final = frozenset(
    "aufs bcachefs btrfs erofs exfat ext2 ext3 ext4 f2fs jfs nilfs2 "  # noqa: SIM905
    "ntfs3 overlay ramfs reiserfs rootfs squashfs tmpfs ubifs vfat xfs zfs".split()
)
"""File systems that only this machine's kernel writes to: it reports all changes."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class _Folder:
    """Why a folder is watched."""

    def __init__(self) -> None:
        self.has_files = False
        self.next_names: set[str] = set()
        """Folders or links of these names lead to more files."""
        self.leads_on = False
        """All folders in it lead to more files, whatever their names."""


class FolderWatch:
    """The inotify watch of one tailer."""

    def __init__(self, files: MachineFiles) -> None:
        self._files = files
        self._inotify: INotify | None = None
        self._folders: dict[int, dict[str, _Folder]] = {}
        """By watch; several paths may lead to one folder."""
        self._links: dict[str, list[str]] = {}
        """By their targets."""
        self._events: list[WatchEvent] = []
        self._on_events: Callable[[], None] | None = None
        self._moved: dict[int, str] = {}
        """Paths that files left, by the cookie of the move."""
        self._pause: asyncio.TimerHandle | None = None
        self._is_reading = False

    def begin(self, on_events: Callable[[], None]) -> None:
        self._on_events = on_events

    async def follow(self, paths: Sequence[str], links: Mapping[str, str]) -> str:
        folders, problem = await self._files.work(partial(self._watch, tuple(paths), dict(links)))
        self._folders = folders
        self._links = {}
        for link, target in links.items():
            self._links.setdefault(target, []).append(link)
        if self._inotify is not None and self._pause is None and not self._is_reading:
            self._listen()
        return problem

    def take(self) -> list[WatchEvent]:
        taken, self._events = self._events, []
        if len(taken) >= _EVENTS_MAX:
            self._listen()
        return taken

    def end(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._inotify is not None:
            if self._is_reading:
                asyncio.get_running_loop().remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None

    # Reading

    def _listen(self) -> None:
        self._pause = None
        if self._inotify is not None and len(self._events) < _EVENTS_MAX:
            self._is_reading = True
            asyncio.get_running_loop().add_reader(self._inotify.fileno(), self._read)

    def _read(self) -> None:
        assert self._inotify is not None
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.remove_reader(self._inotify.fileno())
        self._is_reading = False
        left, self._moved = self._moved, {}
        for event in self._inotify.read(timeout=0):
            self._tell(event, left)
        self._events += (WatchEvent(EventKind.REMOVED, path) for path in self._moved.values())
        if self._events and self._on_events is not None:
            self._on_events()
        pause_s = max(_PAUSE_S, _SHARE * (loop.time() - began))
        self._pause = loop.call_later(min(pause_s, _PAUSE_S_MAX), self._listen)

    def _tell(self, event: "Event", left: Mapping[int, str]) -> None:
        """`left` is of the last reading: the two events of a move may come in two readings."""
        mask = event.mask
        if mask & _Q_OVERFLOW:
            self._events.append(WatchEvent(EventKind.UNCLEAR))
            return
        # The scan that follows covers folders that are unknown or no longer known.
        for path, folder in self._folders.get(event.wd, {}).items():
            if mask & (_IGNORED | _MOVE_SELF):
                self._events.append(WatchEvent(EventKind.UNCLEAR))
            elif mask & _IS_FOLDER or not folder.has_files:
                if mask & _FOLDERS and (folder.leads_on or event.name in folder.next_names):
                    self._events.append(WatchEvent(EventKind.UNCLEAR))
            else:
                self._tell_of_file(event, f"{path.rstrip('/')}/{event.name}", left)

    def _tell_of_file(self, event: "Event", path: str, left: Mapping[int, str]) -> None:
        paths = [path, *self._links.get(path, ())]
        if event.mask & _MODIFY:
            self._events += (WatchEvent(EventKind.WRITTEN, each) for each in paths)
        elif event.mask & _MOVED_FROM:
            self._moved[event.cookie] = paths[-1]  # the file is known by the path of the link
            self._events += (WatchEvent(EventKind.REMOVED, each) for each in paths[1:])
        elif event.mask & _MOVED_TO:
            origin = self._moved.pop(event.cookie, "") or left.get(event.cookie, "")
            self._events.append(WatchEvent(EventKind.MOVED, path, origin))
            self._events += (WatchEvent(EventKind.CREATED, each) for each in paths[1:])
        elif event.mask & _CREATE:
            self._events += (WatchEvent(EventKind.CREATED, each) for each in paths)
        elif event.mask & _DELETE:
            self._events += (WatchEvent(EventKind.REMOVED, each) for each in paths)

    # On a thread

    def _watch(
        self, paths: Sequence[str], links: dict[str, str]
    ) -> tuple[dict[int, dict[str, _Folder]], str]:
        if sys.platform != "linux":
            return {}, "this system has no inotify"
        from inotify_simple import INotify  # noqa: PLC0415 (Linux alone has it)

        try:
            inotify = self._inotify = self._inotify or INotify(nonblocking=True)
        except OSError as error:
            return {}, f"inotify: {error.strerror}: raise fs.inotify.max_user_instances"
        problem = ""
        types = _file_system_types()
        watches: dict[int, dict[str, _Folder]] = {}
        folders = _folders_of(paths, links)
        if len(folders) >= _FOLDERS_MAX:
            problem = f"the globs lead to more than {_FOLDERS_MAX} folders"
        for path, folder in folders.items():
            mask = _NAMES | _ONLY_FOLDERS | _MASK_ADD | (_MODIFY if folder.has_files else 0)
            try:
                watch = inotify.add_watch(path, mask)
            except OSError as error:
                if error.errno == errno.ENOENT or not (folder.has_files or problem):
                    continue  # it is gone, or scans suffice for what is above
                problem = f"{path} cannot be watched: {error.strerror}"
                if error.errno == errno.ENOSPC:
                    problem = f"{path} cannot be watched: raise fs.inotify.max_user_watches"
                continue
            watches.setdefault(watch, {})[path] = folder
            if folder.has_files and (kind := _type_of(path, types)) not in _LOCAL:
                problem = f"{path} is on {kind or 'an unknown file system'}, where others may write"
        for watch in self._folders.keys() - watches.keys():
            try:
                inotify.rm_watch(watch)
            except OSError:
                continue  # its folder is gone
        return watches, problem


def _folders_of(paths: Sequence[str], links: Mapping[str, str]) -> dict[str, _Folder]:
    folders: dict[str, _Folder] = {}
    for path in paths:
        if path.startswith("/"):
            _walk("/", path.split("/")[1:], folders)
    for target in links.values():
        folders.setdefault(target.rpartition("/")[0] or "/", _Folder()).has_files = True
    return folders


def _walk(path: str, parts: Sequence[str], folders: dict[str, _Folder]) -> None:
    if len(folders) >= _FOLDERS_MAX:
        return
    folder = folders.setdefault(path, _Folder())
    head, rest = parts[0], parts[1:]
    if head == "**":
        for below in _all_below(path):
            each = folders.setdefault(below, _Folder())
            each.leads_on = True
            if rest:
                _walk(below, rest, folders)
            else:
                each.has_files = True
    elif not rest:
        folder.has_files = True
    elif glob.has_magic(head):
        folder.leads_on = True
        for name in _folders_in(path):
            if is_matched(name, head):
                _walk(_joined(path, name), rest, folders)
    else:
        folder.next_names.add(head)
        if os.path.isdir(_joined(path, head)):
            _walk(_joined(path, head), rest, folders)


def _all_below(path: str) -> Iterator[str]:
    """Yields the folder itself and all below; none twice, whatever links lead to."""
    seen: dict[tuple[int, int], None] = {}
    waiting = [path]
    while waiting and len(seen) < _FOLDERS_MAX:
        path = waiting.pop()
        try:
            status = os.stat(path)
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in seen or not stat.S_ISDIR(status.st_mode):
            continue
        seen[status.st_dev, status.st_ino] = None
        yield path
        waiting += (_joined(path, name) for name in _folders_in(path) if name[0] != ".")


def _folders_in(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _joined(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _file_system_types() -> dict[str, str]:
    """Returns types by mount point; empty if the system does not list them."""
    types = {}
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                fields = line.split()
                point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4])
                types[point] = fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        return {}
    return types


def _type_of(path: str, types: Mapping[str, str]) -> str:
    path = os.path.realpath(path)
    while path not in types and path != "/":
        path = os.path.dirname(path)
    return types.get(path, "")
