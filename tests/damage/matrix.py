"""All cells, how one is run, and the table of what they came to."""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.damage import bookies, nodes, stores
from tests.damage.cells import DAMAGES, SCOPES, Cell, Outcome, Pick, Seen
from tests.damage.real_bookies import RealBookies
from tests.damage.real_folders import RealScene
from tests.damage.real_nodes import RealNodes
from tests.damage.real_stores import RealStores

PAGE: Final = Path(__file__).parents[2] / "docs/repair.md"
BEGIN: Final = "<!-- damage: begin -->"
END: Final = "<!-- damage: end -->"
REAL_BEGIN: Final = "<!-- damage on real folders: begin -->"
REAL_END: Final = "<!-- damage on real folders: end -->"
NOT_RUN: Final = "not run"
_HEADS: Final = {"one": "of one", "two": "of two", "all": "of all three"}

RunCell = Callable[[Cell, int], Seen]
PROCESSES: Final[dict[str, tuple[dict[str, Pick], RunCell]]] = {
    "store": (stores.FILES, stores.run_store_cell),
    "bookie": (bookies.FILES, bookies.run_bookie_cell),
    "node": (nodes.FILES, nodes.run_node_cell),
}

REAL: Final[dict[str, type[RealScene]]] = {
    "store": RealStores,
    "bookie": RealBookies,
    "node": RealNodes,
}


def cells(processes: Iterable[str] = tuple(PROCESSES), *, is_real: bool = False) -> Iterator[Cell]:
    for process in processes:
        for file in REAL[process].files if is_real else PROCESSES[process][0]:
            for damage in DAMAGES:
                for scope in SCOPES:
                    yield Cell(process, file, damage, scope)


def run_cell(cell: Cell, seed: int) -> Seen:
    return PROCESSES[cell.process][1](cell, seed)


@contextmanager
def real_cells() -> Iterator[RunCell]:
    """Runs cells on real folders; the processes of a kind share them, and end with the block."""
    with ExitStack() as stack:
        scenes: dict[str, RealScene] = {}

        def run(cell: Cell, seed: int) -> Seen:
            if cell.process not in scenes:
                folder = Path(stack.enter_context(TemporaryDirectory()))
                scenes[cell.process] = stack.enter_context(REAL[cell.process](folder))
            return scenes[cell.process].run(cell, seed)

        yield run


def command(cell: Cell, seed: int, *, is_real: bool = False) -> str:
    return (
        f"python -m tests.damage {'--real ' if is_real else ''}{cell.process} "
        f"--file '{cell.file}' --damage '{cell.damage}' "
        f"--scope {cell.scope} --seeds {seed}:{seed + 1}"
    )


def table(shown: Mapping[Cell, str]) -> str:
    """A row for each class of file and damage, a column for each number of processes."""
    scopes = [scope for scope in SCOPES if any(cell.scope == scope for cell in shown)]
    heads = ["process", "file", "damage", *(_HEADS[scope] for scope in scopes)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    rows = dict.fromkeys((cell.process, cell.file, cell.damage) for cell in shown)
    for process, file, damage in rows:
        row = [shown.get(Cell(process, file, damage, scope), NOT_RUN) for scope in scopes]
        lines.append(f"| {process} | {file} | {damage} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def told(outcomes: Iterable[Outcome]) -> str:
    """Several outcomes where the seeds differ. A run that hit nothing says nothing where another
    one did.
    """
    kinds = sorted({each for each in outcomes if each is not Outcome.NOT_HIT})
    return ", ".join(map(str, kinds)) or str(Outcome.NOT_HIT)


def recorded(page: Path, *, is_real: bool = False) -> dict[Cell, str]:
    """What the table in the page says of the cells that were run."""
    _, rows, _ = _parts(page, is_real=is_real)
    scope_of = {head: scope for scope, head in _HEADS.items()}
    heads: list[str] = []
    shown: dict[Cell, str] = {}
    for line in rows.splitlines():
        columns = [each.strip() for each in line.strip().strip("|").split("|")]
        if columns[0] == "process":
            heads = columns[3:]
        elif len(columns) == 3 + len(heads):
            process, file, damage, *texts = columns
            for head, text in zip(heads, texts, strict=True):
                if text not in ("---", NOT_RUN):
                    shown[Cell(process, file, damage, scope_of[head])] = text
    return shown


def record(page: Path, shown: Mapping[Cell, str], *, is_real: bool = False) -> None:
    """Replaces these cells in the page, and keeps what it says of all others."""
    with _alone_with(page):
        joined = recorded(page, is_real=is_real) | dict(shown)
        before, _, after = _parts(page, is_real=is_real)
        text = table({cell: joined[cell] for cell in cells(is_real=is_real) if cell in joined})
        page.write_text(f"{before}{text}{after}")


@contextmanager
def _alone_with(page: Path) -> Iterator[None]:
    """Parts of the table may be run at the same time."""
    folder = os.open(page.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _parts(page: Path, *, is_real: bool) -> tuple[str, str, str]:
    """What stands before, between and behind the markers."""
    first, last = (REAL_BEGIN, REAL_END) if is_real else (BEGIN, END)
    before, begin, rest = page.read_text().partition(f"{first}\n")
    between, end, after = rest.partition(last)
    if not (begin and end):
        raise ValueError(f"{page} lacks the markers {first} and {last}")
    return before + begin, between, end + after
