"""Gathers the events of a watch of folders: which paths have to be visited, and how soon.

No I/O and no clock. Events only say *where* to look: the file system says what is at a path now. So
an event that is late, lost or doubled does no harm that outlasts the next scan; without a watch,
scans alone are enough.
"""

import glob
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from fnmatch import fnmatchcase

import msgspec


class EventKind(Enum):
    """What happened to a path."""

    WRITTEN = auto()
    """The file was written to, or cut."""
    CREATED = auto()
    MOVED = auto()
    """The file that was at `origin` is at the path now; `origin` is empty if it came from a folder
    that is not watched.
    """
    REMOVED = auto()
    """Deleted, or moved to a folder that is not watched."""
    UNCLEAR = auto()
    """Events were lost, or folders came and went: a scan is needed."""


class WatchEvent(msgspec.Struct, frozen=True):
    """One event."""

    kind: EventKind
    path: str = ""
    origin: str = ""


class Globs:
    """Whether a scan would find a path."""

    def __init__(self, paths: Sequence[str], exclude: Sequence[str]) -> None:
        self._named = frozenset(path for path in paths if not glob.has_magic(path))
        self._patterns = [path.split("/") for path in paths if glob.has_magic(path)]
        self._exclude = exclude

    def matches(self, path: str) -> bool:
        if path in self._named:
            return True
        names = path.split("/")
        return any(_fits(names, each) for each in self._patterns) and not is_excluded(
            path, self._exclude
        )


def is_excluded(path: str, exclude: Sequence[str]) -> bool:
    base = path.rpartition("/")[2]
    return any(fnmatchcase(path if "/" in pattern else base, pattern) for pattern in exclude)


def is_matched(name: str, pattern: str) -> bool:
    """Matches one part of a path like `glob`: hidden names need a pattern with a dot."""
    if not glob.has_magic(pattern):
        return name == pattern
    return (pattern[0] == "." or not name.startswith(".")) and fnmatchcase(name, pattern)


def _fits(names: Sequence[str], patterns: Sequence[str]) -> bool:
    for at, pattern in enumerate(patterns):
        if pattern == "**":
            rest = patterns[at + 1 :] or ["*"]
            for begin in range(at, len(names)):
                if _fits(names[begin:], rest):
                    return True
                if names[begin].startswith("."):
                    break
            return False
        if at >= len(names) or not is_matched(names[at], pattern):
            return False
    return len(names) == len(patterns)


class PathsToVisit:
    """The paths to visit, gathered from all events."""

    def __init__(self, globs: Globs) -> None:
        self._globs = globs
        self.written: dict[str, None] = {}
        """Visited after a while, so that a file that grows fast is not visited at each write."""
        self.named: dict[str, str] = {}
        """Visited at once: a path that may lead to another file, and the path by which a glob
        matched this file before. The file that had its name first comes first.
        """
        self.is_unclear = False
        self.missed_files = 0
        """Files known to have been made and removed before they were visited."""
        self._born: dict[str, None] = {}

    def add(self, events: Iterable[WatchEvent]) -> None:
        for event in events:
            match event.kind:
                case EventKind.WRITTEN:
                    self.written[event.path] = None
                case EventKind.CREATED:
                    self._name(event.path)
                    self._hurry_original(event.path)
                    if self._globs.matches(event.path):
                        self._born[event.path] = None
                case EventKind.MOVED:
                    self._move(event.origin, event.path)
                case EventKind.REMOVED:
                    self._remove(event.path)
                    self._name(event.path)
                case EventKind.UNCLEAR:
                    self.is_unclear = True

    def take_named(self) -> dict[str, str]:
        """Takes paths and origins; what is found there is no longer unvisited."""
        taken, self.named = self.named, {}
        for path in taken:
            self.written.pop(path, None)
        return taken

    def visited(self, path: str) -> None:
        """A visit found something at the path."""
        self._born.pop(path, None)

    def scanned(self) -> None:
        """A scan has seen all that is there."""
        self._born.clear()

    def _name(self, path: str, origin: str = "") -> None:
        self.named.pop(path, None)
        self.named[path] = origin

    def _move(self, origin: str, path: str) -> None:
        first = self.named.get(origin) or (origin if self._globs.matches(origin) else "")
        self._remove(path)
        self._name(path, first)
        if origin:
            self._name(origin)
        self._born.pop(origin, None)

    def _remove(self, path: str) -> None:
        if path in self._born:
            del self._born[path]
            self.missed_files += 1

    def _hurry_original(self, path: str) -> None:
        """Visits `a.log` soon when `a.log.1` appears: that may be its copy, before a cut."""
        for end in range(path.rfind("/") + 2, len(path)):
            if path[:end] in self.written:
                self._name(path[:end])
