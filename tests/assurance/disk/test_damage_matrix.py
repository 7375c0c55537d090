"""Damaged files lose nothing: a part of the table that `python -m tests.damage` prints."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from raftwood.disk.segment_log import recovery
from tests.damage.cells import DAMAGES, SCOPES, Cell, Outcome
from tests.damage.matrix import PAGE, PROCESSES, command, record, recorded, run_cell, table, told


def some_cells(process: str) -> Iterator[tuple[Cell, int]]:
    """Each class of file and damage once; the number of processes and the seed take turns.

    Nodes take longer, and their logs are those of the others: the engine, and one class more.
    """
    scopes, seeds = cycle(SCOPES), cycle((0, 1, 3, 2))
    for file in ("newest segment", "engine") if process == "node" else PROCESSES[process][0]:
        for damage in DAMAGES:
            yield Cell(process, file, damage, next(scopes)), next(seeds)
        next(scopes)


@pytest.mark.parametrize("process", PROCESSES)
def test_no_acked_record_is_lost_or_wrong(process: str) -> None:
    found: dict[Cell, Outcome] = {}
    for cell, seed in some_cells(process):
        seen = run_cell(cell, seed)
        found[cell] = seen.outcome
        assert not seen.outcome.is_failure, (seen, command(cell, seed))
    assert len(set(found.values())) > 2, table({cell: str(each) for cell, each in found.items()})


@pytest.mark.parametrize("process", ["store", "bookie"])
def test_a_log_that_does_not_look_at_its_horizon_is_found_out(
    process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost newest segment then looks like a crash, and what was acked in it is lost. A node's
    engine would know better.
    """

    async def no_horizon(*_: object) -> None:
        return None

    monkeypatch.setattr(recovery, "FLAG_HORIZON", 0)
    monkeypatch.setattr(recovery, "load_horizon", no_horizon)
    seen = [
        run_cell(Cell(process, "newest segment", "deleted", scope), 0).outcome
        for scope in ("one", "two")
    ]
    assert Outcome.LOST in seen


@pytest.mark.parametrize(
    ("cell", "seed"),
    [
        (Cell("store", "oldest segment", "deleted", "one"), 0),
        (Cell("store", "newest segment", "deleted", "all"), 1),
    ],
    ids=str,
)
def test_what_once_lost_records_does_so_no_more(cell: Cell, seed: int) -> None:
    """All segments with data were gone and one that was prepared was left; all stores had lost
    their logs, and founded the group anew.
    """
    assert not run_cell(cell, seed).outcome.is_failure


@pytest.mark.parametrize("is_real", [False, True])
def test_the_page_keeps_the_cells_that_were_not_run(tmp_path: Path, is_real: bool) -> None:
    page = tmp_path / PAGE.name
    page.write_text(PAGE.read_text())
    before = recorded(page, is_real=is_real)
    assert before
    record(page, {}, is_real=is_real)
    assert page.read_text() == PAGE.read_text()
    new = {
        Cell("bookie", "HORIZON", "deleted", "two"): told([Outcome.LOST, Outcome.NOT_HIT]),
        Cell("node", "newest segment", "one bit", "all"): told([Outcome.NOT_HIT]),
    }
    record(page, new, is_real=is_real)
    assert recorded(page, is_real=is_real) == before | new
    assert recorded(page, is_real=not is_real) == recorded(PAGE, is_real=not is_real)
