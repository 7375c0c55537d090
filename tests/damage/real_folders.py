"""Data folders of real processes: kept once they are filled, brought back and damaged per cell."""

import asyncio
import random
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from raftwood.base.errors import RaftwoodError
from tests.damage.cells import Cell, Outcome, Pick, Seen, harm_among, victims
from tests.kits.processes import START_S_MAX, RealProcess, StoreProcess

ALONE_S: Final = 6.0
"""For so long the damaged process and the one that lags are without the other."""
SERVED_S: Final = 20.0
"""For so long nobody serves before it counts as for good."""
WHOLE_S: Final = 60.0
_AGAIN_S: Final = 0.2
_POLL_S: Final = 0.02


def files_of(folder: Path) -> dict[str, bytes]:
    """What a folder holds, by path; a process that runs may remove files meanwhile."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        try:
            found[str(path)] = path.read_bytes()
        except (IsADirectoryError, FileNotFoundError):
            continue
    return found


class Kept:
    """Folders as they were when their processes had ended, and what some files were before."""

    def __init__(self, place: Path, folders: Sequence[Path]) -> None:
        self._place = place
        self._folders = folders
        self.older: dict[Path, dict[str, bytes]] = {folder: {} for folder in folders}

    def note_older(self) -> None:
        for folder in self._folders:
            self.older[folder] |= files_of(folder)

    def keep(self) -> None:
        for folder in self._folders:
            shutil.copytree(folder, self._place / folder.name)

    def bring_back(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self._place / folder.name, folder)

    def harm(self, folder: Path, pick: Pick, damage: str, chosen: random.Random) -> bool:
        """Damage the file of a class; whether there was one to damage."""
        hit = harm_among(files_of(folder), pick, damage, self.older[folder], chosen)
        if hit is None:
            return False
        path, left = hit
        if left is None:
            Path(path).unlink()
        else:
            Path(path).write_bytes(left)
        return True


class RealScene(ABC):
    """Three processes whose folders are filled once for each of two stories, and begin every cell
    as they were then. Even seeds: the third was away for the last records, the others were stopped
    in order. Odd ones: all had everything and were killed.
    """

    files: ClassVar[dict[str, Pick]]
    """The classes of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[bool, Kept] = {}
        self._told: dict[bool, list[bytes]] = {}
        self.lags = False
        """Which story this cell goes on with."""
        self.harmed: list[StoreProcess] = []
        self.acked: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.helpers, *self.processes):
            each.discard()

    @property
    @abstractmethod
    def helpers(self) -> Sequence[StoreProcess]:
        """Those that the three need, and nobody damages."""

    @property
    @abstractmethod
    def processes(self) -> Sequence[StoreProcess]: ...

    @abstractmethod
    def fill(self, kept: Kept, *, lags: bool) -> None:
        """Begin with empty folders, write acked records, note what is older, end all processes."""

    @abstractmethod
    def observe(self) -> Seen:
        """Start the first and the third, then the second, and see what they serve."""

    def order(self) -> Sequence[StoreProcess]:
        """The first ones are damaged."""
        return self.processes

    def run(self, cell: Cell, seed: int) -> Seen:
        self.lags = lags = seed % 2 == 0
        for each in (*self.helpers, *self.processes):
            each.discard()
        if lags not in self._kept:
            self._fill(lags=lags)
        for each in (*self.helpers, *self.processes):
            each.log.unlink(missing_ok=True)
        self.acked = list(self._told[lags])
        kept = self._kept[lags]
        kept.bring_back()
        chosen = random.Random(f"{cell} {seed}")
        pick = self.files[cell.file]
        self.harmed = [self.order()[number] for number in victims(cell.scope, range(3))]
        hits = [kept.harm(each.folder, pick, cell.damage, chosen) for each in self.harmed]
        if not any(hits):
            return Seen(Outcome.NOT_HIT)
        seen = self.observe()
        self._check_ends()
        return seen

    def _check_ends(self) -> None:
        """Only a damaged process may have refused to start, and none may have crashed."""
        for each in self.processes:
            if each.log.exists() and not each.is_running:
                assert each in self.harmed, each.tail()
                assert "Traceback" not in each.log.read_text(), each.tail()

    def _fill(self, *, lags: bool) -> None:
        folders = [each.folder for each in (*self.helpers, *self.processes)]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        kept = Kept(self.folder / f"kept-{lags}", folders)
        self.acked = []
        self.fill(kept, lags=lags)
        kept.keep()
        self._kept[lags], self._told[lags] = kept, self.acked


async def settled(*processes: RealProcess) -> None:
    """Until each is ready or has ended: one with damage may refuse to start."""
    deadline = time.monotonic() + START_S_MAX
    while not all(each.is_ready or not each.is_running for each in processes):
        assert time.monotonic() < deadline, [each.tail() for each in processes]
        await asyncio.sleep(_POLL_S)


async def served(
    read: Callable[[], Awaitable[list[bytes]]], timeout_s: float
) -> list[bytes] | None:
    """What is read within this time; None where nobody serves."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await read()
                except RaftwoodError:
                    await asyncio.sleep(_AGAIN_S)
    except TimeoutError:
        return None


def refusals(processes: Sequence[RealProcess]) -> str:
    """The last words of those that do not run."""
    return "; ".join(each.tail()[-300:] for each in processes if not each.is_running)
