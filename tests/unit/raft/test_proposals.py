"""A batch gets the results of its own entries, whatever leaders come and go in between."""

from typing import Any

import pytest

from raftwood.base.errors import ConnectionLost, RaftwoodError, ShuttingDown, Unavailable
from raftwood.raft.core import Entry, EntryKind
from raftwood.raft.requests import OutcomeUnknown, ProposalBatch, Proposals, split_batch


class Caller:
    """Proposes a batch that stands at an index, and keeps what it is told."""

    def __init__(
        self,
        proposals: Proposals,
        *,
        first_index: int,
        count: int,
        term: int,
        kind: EntryKind = EntryKind.NORMAL,
    ) -> None:
        entries = [Entry(0, 0, kind, b"command")] * count
        batch = ProposalBatch(entries, count, self._done)
        batch.first_index, batch.term = first_index, term
        proposals.size_bytes += count
        proposals.entered_log([batch])
        self.results: list[Any] | None = None
        self.error: RaftwoodError | None = None

    def _done(self, results: list[Any] | None, error: RaftwoodError | None) -> None:
        assert self.results is None
        assert self.error is None
        self.results, self.error = results, error


def apply(proposals: Proposals, first_index: int, *terms: int) -> None:
    entries = [
        Entry(term, index, EntryKind.NORMAL, b"x") for index, term in enumerate(terms, first_index)
    ]
    proposals.applied(entries, [entry.index for entry in entries])


def test_a_batch_gets_its_results_in_parts() -> None:
    proposals = Proposals()
    caller = Caller(proposals, first_index=5, count=3, term=2)
    apply(proposals, 4, 2, 2)
    assert len(proposals) == 1
    apply(proposals, 6, 2, 2, 2)
    assert caller.results == [5, 6, 7]
    assert len(proposals) == proposals.size_bytes == 0


def test_a_later_batch_at_a_lower_index_does_not_wait_for_the_one_that_was_cut_off() -> None:
    proposals = Proposals()
    cut_off = Caller(proposals, first_index=20, count=1, term=5)
    later = Caller(proposals, first_index=13, count=2, term=7)
    apply(proposals, 12, 7, 7, 7)
    assert later.results == [13, 14]
    assert isinstance(cut_off.error, Unavailable)
    assert len(proposals) == proposals.size_bytes == 0


def test_a_batch_that_was_cut_off_is_answered_as_soon_as_a_later_term_is_applied() -> None:
    proposals = Proposals()
    cut_off = Caller(proposals, first_index=20, count=1, term=5)
    apply(proposals, 12, 5, 5)
    assert len(proposals) == 1, "it may still be committed"
    apply(proposals, 14, 7)
    assert isinstance(cut_off.error, Unavailable)
    assert not isinstance(cut_off.error, ConnectionLost), "it is known that it was not done"


def test_entries_that_come_back_after_all_are_answered() -> None:
    proposals = Proposals()
    old = Caller(proposals, first_index=10, count=4, term=5)
    later = Caller(proposals, first_index=12, count=1, term=7)
    apply(proposals, 10, 5, 5)
    apply(proposals, 12, 5, 5, 8)
    assert old.results == [10, 11, 12, 13]
    assert isinstance(later.error, Unavailable)


def test_the_end_of_a_batch_that_another_leader_replaced_gets_no_result_of_others() -> None:
    proposals = Proposals()
    caller = Caller(proposals, first_index=10, count=4, term=5)
    apply(proposals, 10, 5, 5, 6, 6)
    assert caller.results is not None
    assert caller.results[:2] == [10, 11]
    assert all(isinstance(each, Unavailable) for each in caller.results[2:])


def test_a_sessions_batch_that_was_replaced_in_part_is_sent_again_as_a_whole() -> None:
    proposals = Proposals()
    caller = Caller(proposals, first_index=10, count=4, term=5, kind=EntryKind.CONTROL)
    apply(proposals, 10, 5, 5, 6, 6)
    assert caller.results is None
    assert isinstance(caller.error, Unavailable)


@pytest.mark.parametrize("kind", [EntryKind.NORMAL, EntryKind.CONTROL])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_batch_in_parts_may_have_been_done_if_one_of_them_may(
    kind: EntryKind, is_reversed: bool
) -> None:
    told: list[RaftwoodError | None] = []
    entries = [Entry(0, 0, kind, b"large") for _ in range(2)]
    parts = split_batch(entries, 5, lambda _, error: told.append(error))
    reasons = [ShuttingDown("it was never in the log"), OutcomeUnknown("it was")]
    for part, reason in zip(parts, reversed(reasons) if is_reversed else reasons, strict=True):
        part.done(None, reason)
    assert isinstance(told[0], OutcomeUnknown), "only a session may send it again"


def test_parts_of_a_sessions_batch_have_one_outcome() -> None:
    told: list[tuple[list[Any] | None, RaftwoodError | None]] = []
    entries = [Entry(0, 0, EntryKind.CONTROL, b"large") for _ in range(2)]
    first, second = split_batch(entries, 5, lambda *outcome: told.append(outcome))
    second.done(None, Unavailable("another leader took over"))
    first.done([b"done"], None)
    assert told[0][0] is None
    assert isinstance(told[0][1], Unavailable)


def test_what_is_in_the_log_when_a_replica_stops_has_an_unknown_outcome() -> None:
    proposals = Proposals()
    in_log = Caller(proposals, first_index=10, count=1, term=5)
    told: list[RaftwoodError | None] = []
    queued = ProposalBatch(
        [Entry(0, 0, EntryKind.NORMAL, b"x")], 1, lambda _, error: told.append(error)
    )
    proposals.add(queued)
    proposals.refuse_all(ShuttingDown("the store shuts down"))
    assert isinstance(told[0], ShuttingDown), "nothing was done"
    assert isinstance(in_log.error, ConnectionLost), "only a session may send it again"
    assert proposals.size_bytes == 0


def test_a_session_may_ask_again_for_what_a_snapshot_overtook() -> None:
    proposals = Proposals()
    caller = Caller(proposals, first_index=10, count=1, term=5)
    proposals.overtaken(10)
    assert isinstance(caller.error, ConnectionLost)
    assert caller.error.retriable
