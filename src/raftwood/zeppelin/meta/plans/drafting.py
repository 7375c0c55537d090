"""From who is to have what to a `Plan`: the changes that lead there."""

from collections.abc import Iterator, Sequence

from raftwood.zeppelin.meta.changes import Change, Migrate, SetMaster
from raftwood.zeppelin.meta.plans.evening import Outcome
from raftwood.zeppelin.meta.plans.layout import Layout
from raftwood.zeppelin.meta.plans.plan import (
    CHANGES_PLANNED_MAX,
    MasterChange,
    Move,
    NodeCount,
    Plan,
)
from raftwood.zeppelin.model import NodeId, Topology


def drafted(
    topology: Topology, layout: Layout, outcomes: Sequence[Outcome], first: Sequence[Change]
) -> Plan:
    """A plan that leads to these outcomes, after some changes that come first."""
    moves: list[Move] = []
    masters: list[MasterChange] = []
    changes: list[Change] = list(first)
    later = 0
    found = [
        (outcome, number, *_pairs(topology, layout, outcome, number))
        for outcome in outcomes
        for number in range(len(outcome.before))
    ]
    # What has to be copied first: masters alone are a matter of a moment.
    for outcome, number, prefer, pairs in sorted(found, key=lambda each: not each[3]):
        name = outcome.table.name
        planned: list[Change] = [] if prefer is None else [SetMaster(name, number, prefer)]
        planned += [Migrate(name, number, source, target) for source, target in pairs]
        if len(changes) + len(planned) > CHANGES_PLANNED_MAX:
            later += len(planned)
            continue
        changes += planned
        moves += _moves(outcome, number, pairs)
        masters += _master(layout, outcome, number)
    changes = [
        Migrate(each.table, each.partition, each.source, each.target, len(moves))
        if isinstance(each, Migrate)
        else each
        for each in changes
    ]
    return Plan(
        epoch=topology.epoch,
        changes=tuple(changes),
        moves=tuple(moves),
        masters=tuple(masters),
        moves_min=sum(each.moves_min for each in outcomes),
        changes_later=later,
        nodes=_counts(layout, outcomes),
        uneven=tuple(text for each in outcomes for text in each.uneven),
    )


def _pairs(
    topology: Topology, layout: Layout, outcome: Outcome, number: int
) -> tuple[NodeId | None, list[tuple[NodeId, NodeId]]]:
    """Who is to be preferred before anything moves, if that is another one, and the moves.

    Whoever is preferred is followed by its target: so a target is master in the end if its source
    is preferred first.
    """
    before, after = set(outcome.before[number]), outcome.after[number]
    old, new = outcome.masters_before[number], outcome.masters_after[number]
    sources, targets = sorted(before - after), sorted(after - before)
    # Those that are down first: there the partition has too few.
    sources.sort(key=lambda node: topology.nodes[layout.ids[node]].is_up)
    chosen: dict[int, int] = {}
    prefer = new
    if new is not None and new in targets:
        prefer = old if old in sources else sources[0]
        chosen[prefer] = new
        targets.remove(new)
    for source in sources:
        if source not in chosen:
            near = [each for each in targets if layout.domains[each] == layout.domains[source]]
            chosen[source] = (near or targets)[0]
            targets.remove(chosen[source])
    pairs = [(layout.ids[source], layout.ids[chosen[source]]) for source in sources]
    is_kept = prefer is None or prefer == old
    return None if is_kept or prefer is None else layout.ids[prefer], pairs


def _moves(outcome: Outcome, number: int, pairs: Sequence[tuple[NodeId, NodeId]]) -> Iterator[Move]:
    master = outcome.table.partitions[number].master
    for source, target in pairs:
        yield Move(
            table=outcome.table.name,
            partition=number,
            source=source,
            target=target,
            role="master" if source == master else "slave",
        )


def _master(layout: Layout, outcome: Outcome, number: int) -> Iterator[MasterChange]:
    old, new = outcome.masters_before[number], outcome.masters_after[number]
    if new is not None and new != old:
        yield MasterChange(
            table=outcome.table.name,
            partition=number,
            source=None if old is None else layout.ids[old],
            target=layout.ids[new],
        )


def _counts(layout: Layout, outcomes: Sequence[Outcome]) -> tuple[NodeCount, ...]:
    counts = [[0, 0, 0, 0] for _ in layout.ids]
    for outcome in outcomes:
        for place, items in ((0, outcome.before), (1, outcome.after)):
            for nodes in items:
                for node in nodes:
                    counts[node][place] += 1
        for place, masters in ((2, outcome.masters_before), (3, outcome.masters_after)):
            for leader in masters:
                if leader is not None:
                    counts[leader][place] += 1
    return tuple(
        NodeCount(
            node=node,
            replicas_before=count[0],
            replicas_after=count[1],
            masters_before=count[2],
            masters_after=count[3],
        )
        for node, count in zip(layout.ids, counts, strict=True)
    )
