"""The benchmark of consumer groups: what members say, what is made of it, and what is judged."""

import sys

import pytest
from benchmarks.consumers import moving, rates
from benchmarks.consumers.compare import GroupResults
from benchmarks.consumers.members import Members, Said
from benchmarks.consumers.moving import Joined, Moved
from benchmarks.consumers.notes import BEGUN, ENDED, STOLEN, Note
from benchmarks.consumers.report import tables, verdicts
from benchmarks.harness.cluster import ClusterFailed
from tests.kits.server.sleepers import figures_of

MS = 1_000_000
SAID = [
    Said(1, Note(STOLEN, 10 * MS, "0")),
    Said(0, Note(ENDED, 30 * MS, "0")),
    Said(1, Note(BEGUN, 90 * MS, "0")),
    Said(0, Note(BEGUN, 95 * MS, "1")),
]
MEMBER = """
import sys
from benchmarks.consumers.notes import say
for line in sys.stdin:
    say("begun" if line.strip() == "join" else "ended", sys.argv[1])
"""


def _command(number: int) -> list[str]:
    return [sys.executable, "-c", MEMBER, str(number % 2)]


def test_hand_overs_count_from_the_steal_and_idle_times_from_the_last_call() -> None:
    assert moving._hand_overs_ms(SAID) == [80.0]
    assert moving._idle_ms(SAID) == [60.0]


def test_who_reads_a_shard_is_who_began_last() -> None:
    with Members(3, _command) as members:
        members.tell([0, 1], "join")
        members.until(lambda: members.sizes() == {0: 1, 1: 1}, 20, "both")
        members.tell([2], "join")
        members.until(lambda: members.readers() == {"0": 2, "1": 1}, 20, "the third")
        members.tell([0, 1], "leave")
        members.until(lambda: members.readers() == {"0": 2}, 20, "the third alone")
        with pytest.raises(ClusterFailed, match="not within 0 s: nobody"):
            members.until(lambda: not members.sizes(), 0, "nobody")


def test_goals_are_judged_by_the_worst_of_each_group() -> None:
    moved = Moved(
        joins=[
            Joined(moves=90, rounds=1, balanced_ms=900),
            Joined(moves=91, rounds=1, balanced_ms=800),
        ],
        hand_overs_ms=[50.0] * 98 + [150.0, 150.0],
        idle_ms=[40.0],
        failovers_ms=[15_000.0, 21_000.0],
    )
    results = GroupResults(disk="a disk", moved={"leases, SQLite": moved, "other": moved})
    cases = [rates.case(shards) for shards in rates.SHARDS]
    results.loads = {
        rates.OURS: {case: figures_of(150) for case in cases},
        rates.KAFKA: {case: figures_of(100) for case in cases},
    }
    judged = [verdict.is_reached for verdict in verdicts(results)]
    assert judged == [True, False, True, False, True, True, True]
    assert len(tables(results)) == 4
