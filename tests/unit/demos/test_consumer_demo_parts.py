"""Parts of the demo of consumers: what processes note, and what the judge makes of it."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from raftwood.cli.command_line import run as raftwood
from raftwood_demos.consumer_journal import SUFFIX, ConsumerJournal, Kept, Note, Processed
from raftwood_demos.consumers import ConsumerVerdict, Fault, checks_of, is_balanced, judge

ANNE, BEN = 1, 2
S = 1_000_000_000


def given(shard: str, epoch: int, at_s: float, *numbers: int) -> Processed:
    at_ns = int(at_s * S)
    return Processed(shard, epoch, "0", at_ns, at_ns + 1, list(numbers))


def book(folder: Path, notes: dict[int, Sequence[Note]]) -> ConsumerJournal:
    for pid, lines in notes.items():
        with (folder / f"{pid}{SUFFIX}").open("ab") as file:
            file.writelines(msgspec.json.encode(each) + b"\n" for each in lines)
    found = ConsumerJournal(str(folder))
    found.update()
    return found


def verdict(
    found: ConsumerJournal,
    sent: int,
    *faults: Fault,
    parents: dict[str, tuple[str, ...]] | None = None,
) -> ConsumerVerdict:
    return judge(found.tenancies(), sent=sent, parents=parents or {}, faults=faults)


def test_notes_are_read_as_they_come_and_a_half_written_line_later(tmp_path: Path) -> None:
    found = book(tmp_path, {ANNE: [given("0", 1, 1, 0, 1)]})
    line = msgspec.json.encode(given("0", 1, 2, 2)) + b"\n"
    with (tmp_path / f"{ANNE}{SUFFIX}").open("ab", buffering=0) as file:
        file.write(line[:9])
        found.update()
        assert found.distinct == {0, 1}
        file.write(line[9:])
    found.update()
    assert found.distinct == {0, 1, 2}
    assert found.processed == 3
    assert found.holders() == {"0": ANNE}


def test_a_graceful_move_holds_and_a_record_that_is_missing_does_not(tmp_path: Path) -> None:
    found = book(tmp_path, {ANNE: [given("0", 1, 1, 0, 1)], BEN: [given("0", 2, 2, 2)]})
    assert verdict(found, 3).held
    assert verdict(found, 5).missing == 2


def test_without_a_fault_no_record_may_come_again(tmp_path: Path) -> None:
    found = book(tmp_path, {ANNE: [given("0", 1, 1, 0, 1)], BEN: [given("0", 2, 2, 1)]})
    assert (verdict(found, 2).repeated, verdict(found, 2).again) == (1, 0)
    of_another = Fault(frozenset([BEN]), 1 * S, 1 * S)
    assert verdict(found, 2, of_another).repeated == 1


def test_behind_the_last_checkpoint_of_one_that_was_killed_records_may_come_again(
    tmp_path: Path,
) -> None:
    anne: list[Note] = [given("0", 1, 1, 0, 1), Kept("0", 1), given("0", 1, 1.2, 2, 3)]
    found = book(tmp_path, {ANNE: anne, BEN: [given("0", 2, 3, 2, 3)]})
    killed = Fault(frozenset([ANNE]), int(1.5 * S), int(1.5 * S))
    assert verdict(found, 4, killed).held
    assert verdict(found, 4, killed).again == 2
    (tmp_path / f"{BEN}{SUFFIX}").unlink()
    found = book(tmp_path, {BEN: [given("0", 2, 3, 1, 2, 3)]})
    assert verdict(found, 4, killed).repeated == 1, "its checkpoint was stored"


def test_one_that_went_on_behind_a_fault_is_not_excused_by_it(tmp_path: Path) -> None:
    anne = [given("0", 1, 1, 0), given("0", 1, 9, 1)]
    found = book(tmp_path, {ANNE: anne, BEN: [given("0", 2, 10, 1)]})
    cut_off = Fault(frozenset([ANNE]), 2 * S, 5 * S)
    assert verdict(found, 2, cut_off).repeated == 1


@pytest.mark.parametrize("is_overrun", [False, True])
def test_two_at_a_shard_are_seen_but_where_one_was_stopped_in_a_call(
    tmp_path: Path, is_overrun: bool
) -> None:
    anne = [given("0", 1, 1, 0), given("0", 1, 5.1, 1)]
    found = book(tmp_path, {ANNE: anne, BEN: [given("0", 2, 4, 1)]})
    stopped = Fault(frozenset([ANNE]), int(1.1 * S), 5 * S, is_overrun)
    assert verdict(found, 2, stopped).overlaps == (0 if is_overrun else 1)


def test_a_child_that_is_begun_before_its_parent_is_done_is_seen(tmp_path: Path) -> None:
    found = book(tmp_path, {ANNE: [given("0", 1, 1, 0), given("0", 1, 3, 1), given("1", 1, 2, 2)]})
    assert verdict(found, 3).held
    seen = verdict(found, 3, parents={"1": ("0",)})
    assert seen.early == 1
    assert [each.held for each in checks_of(seen)] == [True, True, False]


def test_shards_are_balanced_where_all_and_only_these_have_about_as_many() -> None:
    assert is_balanced({"0": ANNE, "1": BEN, "2": BEN}, {"0", "1", "2"}, {ANNE, BEN})
    assert is_balanced({"0": ANNE, "1": BEN, "2": BEN}, {"0", "1"}, {ANNE, BEN})
    assert not is_balanced({"0": BEN, "1": BEN}, {"0", "1"}, {ANNE, BEN})
    assert not is_balanced({"0": ANNE, "1": BEN}, {"0", "1"}, {ANNE})
    assert not is_balanced({"0": ANNE}, {"0", "1"}, {ANNE})


@pytest.mark.parametrize(
    "arguments", [("--shards", "3"), ("--records", "1"), ("--timeout", "0.5")], ids=" ".join
)
def test_what_cannot_be_played_is_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert raftwood(["demo", "consumers", *arguments]) == 2
    assert "4 to 64 shards" in capsys.readouterr().err
