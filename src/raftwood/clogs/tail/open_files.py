"""The open files of a tailer: no more than a bound, the longest unused ones are closed first.

A file that has no name any more is never closed before it is read to its end: nobody could open it
again.
"""

from collections.abc import Callable

from raftwood.base.errors import InvariantViolated
from raftwood.clogs.tail.followed import Followed
from raftwood.clogs.tail.rules import Verdict, judged
from raftwood.clogs.tail.seams import Handle, Opened, TailFiles

Judge = Callable[[Followed, Verdict], bool]
"""What follows from a verdict that is not `SAME`; whether the file is still followed."""


class OpenFiles:
    """Files by their descriptors. A file that `hold` gave is not closed before `done`."""

    def __init__(self, files: TailFiles, *, limit: int, judge: Judge) -> None:
        self._files = files
        self._limit = limit
        self._judge = judge
        self._held: dict[int, tuple[Followed, Handle]] = {}
        """By the file's number, the longest unused one first."""
        self._busy: dict[int, int] = {}
        self._opening = 0

    def __len__(self) -> int:
        return len(self._held)

    def all(self) -> list[tuple[Followed, Handle]]:
        return list(self._held.values())

    async def hold(self, file: Followed) -> Handle | None:
        """The file, open; None where it cannot be for now. Judged where it is opened anew."""
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

    def _judged(self, file: Followed, opened: Opened) -> Handle | None:
        verdict = judged(file, opened.look, is_held=False)
        if file.number in self._held or (
            verdict is not Verdict.SAME and not self._judge(file, verdict)
        ):
            self._files.close(opened.handle)
            return None
        file.folder, file.links, file.is_held = opened.folder, opened.look.links, True
        file.birth_ns = opened.look.birth_ns
        self._held[file.number] = (file, opened.handle)
        self._busy[file.number] = 1
        return opened.handle

    def done(self, file: Followed) -> None:
        """Nobody reads the file any more, for now."""
        uses = self._busy.pop(file.number) - 1
        if uses:
            self._busy[file.number] = uses

    def release(self, file: Followed) -> None:
        """Close a file, if it is open."""
        if file.number in self._busy:
            raise InvariantViolated(f"{file.path} is closed while it is read")
        held = self._held.pop(file.number, None)
        if held is not None:
            file.is_held = False
            self._files.close(held[1])

    def _close_one(self) -> bool:
        """Those that are read to their ends come before those that might be deleted unread, and
        those that a glob finds again before those that have to be looked for.
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


def _worth(file: Followed) -> tuple[bool, bool]:
    return file.read_to < file.size, not file.is_matched
