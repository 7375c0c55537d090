"""What is shown of plans and of their progress."""

from typing import Any

import pytest

from raftwood.cli.kv_overview import MoveBar, progress_text
from raftwood.cli.output import ProgressBar
from raftwood.zeppelin.meta.progress import MigrationProgress, MigrationStage, MovingReplica
from raftwood.zeppelin.model import NodeId


def moving(number: int, step: MigrationStage, **told: Any) -> MovingReplica:
    return MovingReplica(
        table="t",
        partition=number,
        source=NodeId("a"),
        target=NodeId("b"),
        order=7,
        step=step,
        **told,
    )


def progress(*left: MovingReplica, total: int = 4, handovers: int = 0) -> MigrationProgress:
    return MigrationProgress(epoch=9, total=total, moving=left, handovers=handovers, behind=0)


def test_a_bar_goes_on_while_a_replica_is_copied_and_never_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        ProgressBar, "show", lambda _, done, total, __, size: shown.append((done, total, size))
    )
    waiting = [moving(number, "waiting") for number in (1, 2, 3)]
    with MoveBar() as bar:
        bar.show(progress(moving(0, "waiting"), *waiting))
        bar.show(progress(moving(0, "copying", copied_bytes=10, copy_bytes=40), *waiting))
        bar.show(progress(moving(0, "copying", copied_bytes=40, copy_bytes=40), *waiting))
        bar.show(progress(moving(0, "catching up", lag_bytes=3), *waiting))
        bar.show(progress(moving(0, "frozen"), *waiting))
        bar.show(progress(*waiting))
        # Who has nothing left does not tell how many there were.
        bar.show(progress(total=0, handovers=2))
    done = [each[0] for each in shown]
    assert done == sorted(done)
    assert (done[0], done[1], done[-2], done[-1]) == (0, 125, 1_000, 4_000)
    assert {each[1] for each in shown} == {4_000}
    assert [each[2] for each in shown] == [0, 10, 40, 40, 40, 40, 40]


def test_progress_is_told_in_one_line() -> None:
    left = [moving(0, "frozen"), moving(1, "waiting", is_target_up=False)]
    assert progress_text(progress(*left, handovers=1)) == (
        "2 of 4 moved, 1 waiting, 1 frozen, nodes that are down are waited for: b, 1 masters to be "
        "handed over"
    )
