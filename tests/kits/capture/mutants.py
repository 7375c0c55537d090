"""Bugs planted in what captures a partition: each must be caught, or the world proves nothing."""

from typing import Any

from msgspec.structs import replace

from raftwood.capture import events as events_module
from raftwood.capture import rules as rules_module
from raftwood.capture.events import Point
from raftwood.capture.rules import PartitionRules, RecentKeys
from raftwood.zeppelin.records import BinlogPosition
from tests.kits.capture.world import World, run_world
from tests.kits.models import Mutant, Plant, replaced

_valued = PartitionRules.valued
_begin = PartitionRules.begin
_behind = RecentKeys.behind
_add = RecentKeys.add
_changes_of = events_module.changes_of
_encode_flush = events_module.encode_flush
_start = World.start


def _keep_values(rules: PartitionRules, _: Any, *, time_ns: int) -> Any:
    return _valued(rules, None, time_ns=time_ns)


def _forget_repairing(rules: PartitionRules, now: Any, *, time_ns: int) -> Any:
    chunks = _valued(rules, now, time_ns=time_ns)
    assert rules.point is not None
    rules.point = replace(rules.point, repairing=None)
    return [replace(chunk, point=rules.point) for chunk in chunks]


def _trust_recent(recent: RecentKeys, sequence: int) -> Any:
    return _behind(recent, max(sequence, recent.floor))


def _forget_cut_flushes(recent: RecentKeys, sequence: int, key: bytes | None) -> None:
    if key is not None:
        _add(recent, sequence, key)


def _forget_index(rules: PartitionRules, point: Point | None) -> None:
    _begin(rules, replace(point, index=0) if point is not None and point.index else point)


def _repeat_partial_records(record: Any, slots: Any, *, time_ns: int, **_: Any) -> list[Any]:
    return list(_changes_of(record, slots, time_ns=time_ns))


def _no_flush_before_snapshots(slots: range, at: dict[str, str], time_ns: int) -> bytes:
    if at.get("cause") == "snapshot":
        return events_module.encode_mark("begin", at, time_ns)
    return _encode_flush(slots, at, time_ns)


def _trust_half_snapshots(rules: PartitionRules, point: Point | None) -> None:
    _begin(rules, None if point is None else replace(point, is_snapshot=False))


def _read_on_after_a_purge(rules: PartitionRules) -> None:
    assert rules.point is not None
    rules.point = replace(rules.point, sequence=rules.point.sequence + 1)


def _repairs_count_before_all_are_stored(rules: PartitionRules, now: Any, *, time_ns: int) -> Any:
    chunks = _valued(rules, now, time_ns=time_ns)
    assert rules.point is not None
    return [replace(chunk, point=rules.point) for chunk in chunks]


def _cut_before_all_was_put_right(rules: PartitionRules, now: Any, *, time_ns: int) -> Any:
    at = {"epoch": "0", "sequence": str(rules._cut_at)}
    body = rules_module._Body()
    body.add(events_module.encode_mark("cut", at, time_ns))
    assert rules.point is not None
    body.seal(rules.point)
    return [*body.chunks, *_valued(rules, now, time_ns=time_ns)]


def _store_nothing_at_the_begin(world: World) -> None:
    _start(world)
    point = world.rules.point
    if point is None or point.index or not point.sequence:
        return
    if not point.is_snapshot and point.repairing is None:
        world.rules.point = replace(point, sequence=max(0, point.sequence - 1))


def _of(first: int, plant: Plant) -> Mutant:
    return Mutant(run_world, plant, first)


MUTANTS = {
    "keeps values": _of(11, replaced(PartitionRules, valued=_keep_values)),
    "forgets what is repairing": _of(9, replaced(PartitionRules, valued=_forget_repairing)),
    "trusts recent keys": _of(366, replaced(RecentKeys, behind=_trust_recent)),
    "forgets flushes that are cut": _of(61, replaced(RecentKeys, add=_forget_cut_flushes)),
    "forgets the index": _of(26, replaced(PartitionRules, begin=_forget_index)),
    "repeats partial records": _of(1, replaced(rules_module, changes_of=_repeat_partial_records)),
    "no flush before snapshots": _of(
        3, replaced(rules_module, encode_flush=_no_flush_before_snapshots)
    ),
    "trusts half snapshots": _of(64, replaced(PartitionRules, begin=_trust_half_snapshots)),
    "reads on after a purge": _of(12, replaced(PartitionRules, purged=_read_on_after_a_purge)),
    "repairs count before all are stored": _of(
        95, replaced(PartitionRules, valued=_repairs_count_before_all_are_stored)
    ),
    "a cut before all was put right": _of(
        95, replaced(PartitionRules, valued=_cut_before_all_was_put_right)
    ),
    "values of whatever master": _of(54, replaced(PartitionRules, cut_at=BinlogPosition(0, 0))),
    "stores nothing at the begin": _of(0, replaced(World, start=_store_nothing_at_the_begin)),
}
