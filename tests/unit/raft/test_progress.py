"""Flow control towards one follower."""

import random

import pytest

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core.tracker import PROBE, REPLICATE, SNAPSHOT, Inflights, Progress


def _progress(*, match: int = 0, window: int = 4, bytes_max: int = 0) -> Progress:
    return Progress(
        match=match,
        next_index=match + 1,
        inflights=Inflights(window, bytes_max=bytes_max),
        is_learner=False,
    )


def _fullness(window: Inflights, sizes: list[int]) -> list[bool]:
    """Whether the window is full after each message."""
    answers = []
    for index, size in enumerate(sizes, 1):
        window.add(index, size)
        answers.append(window.full)
    return answers


def test_a_window_is_full_by_messages_or_by_bytes() -> None:
    assert _fullness(Inflights(2), [1_000_000, 0]) == [False, True]
    by_bytes = Inflights(10, bytes_max=100)
    # The limit may be passed by the last message, never before it.
    assert _fullness(by_bytes, [60, 60]) == [False, True]
    by_bytes.free_to(1)
    assert by_bytes.bytes_in_flight == 60
    by_bytes.add(3, 30)


def test_nothing_is_added_to_a_full_window() -> None:
    window = Inflights(1)
    window.add(1, 0)
    with pytest.raises(InvariantViolated, match="full"):
        window.add(2, 0)


def test_windows_count_as_a_plain_list_does() -> None:
    source = random.Random(3)
    window = Inflights(8, bytes_max=64)
    model: list[tuple[int, int]] = []
    index = 0
    for _ in range(5000):
        if not window.full and source.random() < 0.6:
            index += source.randint(1, 3)
            size = source.randint(0, 20)
            window.add(index, size)
            model.append((index, size))
        else:
            upto = source.randint(0, index + 1)
            window.free_to(upto)
            model = [item for item in model if item[0] > upto]
        if source.random() < 0.01:
            window.clear()
            model = []
        assert len(window) == len(model)
        assert window.bytes_in_flight == sum(size for _, size in model)
        assert window.full == (len(model) == 8 or sum(size for _, size in model) >= 64)


def test_a_probe_goes_out_alone() -> None:
    progress = _progress()
    seen = []
    for count in (0, 3):
        progress.sent_entries(count, 10 * count)
        seen.append((progress.next, progress.paused))
    assert progress.acknowledge(3)
    seen.append((progress.next, progress.paused))
    assert seen == [(1, False), (1, True), (4, False)]


def test_replication_runs_ahead_until_its_window_is_full() -> None:
    progress = _progress(window=2)
    progress.become_replicate()
    progress.sent_entries(5, 50)
    assert (progress.next, progress.paused) == (6, False)
    progress.sent_entries(1, 10)
    assert (progress.next, progress.paused) == (7, True)
    progress.acknowledge(5)
    progress.inflights.free_to(5)
    assert not progress.paused
    assert progress.next == 7


def test_a_refusal_goes_back_once() -> None:
    progress = _progress(match=3)
    progress.become_replicate()
    progress.sent_entries(4, 0)
    assert not progress.step_back(3, 2)
    assert progress.step_back(7, 5)
    assert progress.next == 4
    progress.become_probe()
    progress.next = 10
    assert not progress.step_back(5, 4)
    assert progress.step_back(9, 6)
    assert progress.next == 7
    # Below the match there is nothing to look for.
    assert progress.step_back(6, 0)
    assert progress.next == 4


def test_after_a_snapshot_probing_begins_behind_it() -> None:
    progress = _progress(match=3)
    progress.become_snapshot(20)
    assert progress.state is SNAPSHOT
    assert progress.paused
    with pytest.raises(InvariantViolated):
        progress.sent_entries(1, 1)
    progress.become_probe()
    assert (progress.state, progress.next) == (PROBE, 21)
    progress.become_snapshot(20)
    progress.pending_snapshot = 0
    progress.become_probe()
    assert progress.next == 4


def test_a_late_acknowledgement_is_no_news() -> None:
    progress = _progress(match=5)
    progress.become_replicate()
    assert progress.state is REPLICATE
    assert not progress.acknowledge(5)
    assert not progress.acknowledge(2)
    assert progress.match == 5
