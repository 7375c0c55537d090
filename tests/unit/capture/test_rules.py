"""What is captured of a partition, whatever becomes of its masters and of the process."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from raftwood.base.errors import InvariantViolated
from raftwood.capture import events as events_module
from raftwood.capture import rules as rules_module
from raftwood.capture.events import Point
from raftwood.capture.recent import Recent
from raftwood.capture.rules import PartitionRules, Step
from raftwood.zeppelin.client.binlogs import PartitionSlots
from raftwood.zeppelin.node.seams import BinlogPosition, Record, encode_record
from tests.kits.capture.world import FAMILY, TIME_NS, World, recent_of, run_world

SEEDS = range(80)
SPLIT = (PartitionSlots(0, 0, 8_192), PartitionSlots(1, 8_192, 16_384, 0, BinlogPosition(1, 7)))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "CHUNK_BYTES", 200)


def test_a_stream_has_the_table_in_the_end_and_each_change_once() -> None:
    marks: set[str] = set()
    for seed in SEEDS:
        world = run_world(seed)
        for stored in world.stream:
            marks |= {f"{each['op']!s} {each.get('cause', '')!s}" for each in stored.contents}
            marks |= {str(each.get("mark")) for each in stored.contents}
            marks |= {"partial"} if stored.stamp.point and stored.stamp.point.index else set()
    wanted = {"set ", "delete ", "flush ", "set repair", "set snapshot", "cut", "partial"}
    assert wanted <= marks, "chance has not shown all of it"


def _keep_values(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PartitionRules.valued
    monkeypatch.setattr(
        PartitionRules, "valued", lambda self, _, *, time_ns: real(self, None, time_ns=time_ns)
    )


def _forget_repairing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PartitionRules.valued

    def valued(self: PartitionRules, now: Any, *, time_ns: int) -> Any:
        chunks = real(self, now, time_ns=time_ns)
        assert self.point is not None
        self.point = msgspec.structs.replace(self.point, repairing=None)
        return [msgspec.structs.replace(chunk, point=self.point) for chunk in chunks]

    monkeypatch.setattr(PartitionRules, "valued", valued)


def _trust_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Recent.behind
    monkeypatch.setattr(
        Recent, "behind", lambda self, sequence: real(self, max(sequence, self.floor))
    )


def _forget_cut_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Recent.add

    def add(self: Recent, sequence: int, key: bytes | None) -> None:
        if key is not None:
            real(self, sequence, key)

    monkeypatch.setattr(Recent, "add", add)


def _forget_index(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PartitionRules.begin

    def begin(self: PartitionRules, point: Point | None) -> None:
        if point is not None and point.index:
            point = msgspec.structs.replace(point, index=0)
        real(self, point)

    monkeypatch.setattr(PartitionRules, "begin", begin)


def _repeat_partial_records(monkeypatch: pytest.MonkeyPatch) -> None:
    real = events_module.changes_of
    monkeypatch.setattr(
        rules_module,
        "changes_of",
        lambda record, slots, *, time_ns, **_: list(real(record, slots, time_ns=time_ns)),
    )


def _no_flush_before_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    real = events_module.encode_flush

    def encode(slots: range, at: dict[str, str], time_ns: int) -> bytes:
        if at.get("cause") == "snapshot":
            return events_module.encode_mark("begin", at, time_ns)
        return real(slots, at, time_ns)

    monkeypatch.setattr(rules_module, "encode_flush", encode)


def _trust_half_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PartitionRules.begin

    def begin(self: PartitionRules, point: Point | None) -> None:
        if point is not None:
            point = msgspec.structs.replace(point, is_snapshot=False)
        real(self, point)

    monkeypatch.setattr(PartitionRules, "begin", begin)


def _read_on_after_a_purge(monkeypatch: pytest.MonkeyPatch) -> None:
    def purged(self: PartitionRules) -> None:
        assert self.point is not None
        self.point = msgspec.structs.replace(self.point, sequence=self.point.sequence + 1)

    monkeypatch.setattr(PartitionRules, "purged", purged)


def _repairs_count_before_all_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PartitionRules.valued

    def valued(self: PartitionRules, now: Any, *, time_ns: int) -> Any:
        chunks = real(self, now, time_ns=time_ns)
        assert self.point is not None
        return [msgspec.structs.replace(chunk, point=self.point) for chunk in chunks]

    monkeypatch.setattr(PartitionRules, "valued", valued)


def _cut_before_all_was_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    real = PartitionRules.valued

    def valued(self: PartitionRules, now: Any, *, time_ns: int) -> Any:
        at = {"epoch": "0", "sequence": str(self._cut_at)}
        body = rules_module._Body()
        body.add(events_module.encode_mark("cut", at, time_ns))
        assert self.point is not None
        body.seal(self.point)
        return [*body.chunks, *real(self, now, time_ns=time_ns)]

    monkeypatch.setattr(PartitionRules, "valued", valued)


def _values_of_whatever_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionRules, "cut_at", BinlogPosition(0, 0))


def _store_nothing_at_the_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: World) -> None:
        real(self)
        if self.rules.point is not None and not self.rules.point.index:
            point = self.rules.point
            if point.sequence and not point.is_snapshot and point.repairing is None:
                again = max(0, point.sequence - 1)
                self.rules.point = msgspec.structs.replace(point, sequence=again)

    real = World.start
    monkeypatch.setattr(World, "start", start)


MUTANTS: Mapping[Callable[[pytest.MonkeyPatch], None], int] = {
    _keep_values: 11,
    _forget_repairing: 9,
    _trust_recent: 366,
    _forget_cut_flushes: 61,
    _forget_index: 26,
    _repeat_partial_records: 1,
    _no_flush_before_snapshots: 3,
    _trust_half_snapshots: 64,
    _read_on_after_a_purge: 12,
    _repairs_count_before_all_are_stored: 95,
    _cut_before_all_was_put_right: 95,
    _values_of_whatever_master: 54,
    _store_nothing_at_the_begin: 0,
}
"""Each with a seed that has caught it."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for seed in (MUTANTS[mutant], *range(1_000)):
        try:
            run_world(seed)
        except (AssertionError, InvariantViolated):
            return
    pytest.fail("nobody noticed")


def test_records_that_do_not_follow_are_a_bug_of_ours() -> None:
    rules = PartitionRules(0, FAMILY, recent=recent_of())
    rules.begin(Point(epoch=2, sequence=3))
    for record in (Record(2, 5, ()), Record(1, 4, ())):
        with pytest.raises(InvariantViolated, match="does not follow"):
            rules.read([encode_record(record)], reached=9, time_ns=TIME_NS)


def test_how_far_a_partition_is_behind() -> None:
    rules = PartitionRules(0, FAMILY, recent=recent_of())
    rules.begin(None)
    rules.read([encode_record(Record(1, 1, ()))], reached=9, time_ns=TIME_NS)
    assert rules.behind == 8


def test_keys_are_kept_within_a_bound() -> None:
    recent = Recent(bytes_max=350)
    for sequence in range(1, 6):
        recent.add(sequence, b"k%d" % sequence)
    assert recent.floor == 2
    assert recent.behind(3) == [b"k5", b"k4"]
    assert recent.behind(1) is None
    recent.cut(4)
    assert recent.behind(2) == [b"k4", b"k3"]
    recent.add(5, None)
    assert recent.behind(4) is None
    recent.begin(9)
    assert (recent.behind(9), recent.behind(8)) == ([], None)


def test_what_was_split_off_begins_where_its_parent_was_split() -> None:
    parent, child = (PartitionRules(n, SPLIT, recent=recent_of()) for n in (0, 1))
    parent.begin(Point(epoch=1, sequence=4))
    assert not child.follow(parent, Point(epoch=1, sequence=6), time_ns=TIME_NS)
    assert not child.follow(parent, Point(epoch=1, sequence=7, index=1), time_ns=TIME_NS)
    assert child.step is Step.WAIT
    (chunk,) = child.follow(parent, Point(epoch=1, sequence=7), time_ns=TIME_NS)
    assert (child.step, chunk.point.position) == (Step.READ, BinlogPosition(1, 7))
    assert child.want.first == 8
    assert not child.follow(parent, Point(epoch=1, sequence=8), time_ns=TIME_NS)


def test_what_was_split_off_is_told_as_a_whole_where_its_parent_was_behind_the_split() -> None:
    parent, child = (PartitionRules(n, SPLIT, recent=recent_of()) for n in (0, 1))
    parent.begin(None)
    parent.snapshot_begun(range(10), time_ns=TIME_NS)
    assert parent.point is not None
    assert not child.follow(parent, parent.point, time_ns=TIME_NS)
    parent.snapshot_ended(BinlogPosition(2, 9), time_ns=TIME_NS)
    assert not child.follow(parent, parent.point, time_ns=TIME_NS)
    assert child.step is Step.SNAPSHOT
