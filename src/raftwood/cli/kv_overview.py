"""Zeppelin at a glance: tables, nodes, problems and moves, as rows for people and machines."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from raftwood.cli.output import Format, ProgressBar, write_json, write_line, write_rows
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.heartbeats import ReplicaOffset
from raftwood.zeppelin.meta.plans import ClusterPlan
from raftwood.zeppelin.meta.progress import MigrationProgress, progress_of
from raftwood.zeppelin.meta.queries import NodeReport
from raftwood.zeppelin.model import NodeId, NodeInfo, Partition, Table, Topology

CONTACT_MS_MAX: Final = 10_000
_NAMED_MAX: Final = 10


class Overview:
    """The topology, and how far nodes said they are."""

    def __init__(self, topology: Topology, reports: Mapping[NodeId, NodeReport]) -> None:
        self.topology = topology
        self._reports = reports
        self._offsets: dict[tuple[NodeId, int, int], ReplicaOffset] = {
            (node, offset.incarnation, offset.partition): offset
            for node, report in reports.items()
            for offset in report.offsets
        }

    def is_up(self, node: NodeId) -> bool:
        known = self.topology.nodes.get(node)
        return known is not None and known.is_up

    def offset(self, table: Table, number: int, node: NodeId) -> ReplicaOffset | None:
        return self._offsets.get((node, table.incarnation, number))

    # What is there

    def tables(self) -> list[dict[str, Any]]:
        return [self._table(each) for each in self.topology.tables.values()]

    def _table(self, table: Table) -> dict[str, Any]:
        partitions, config = table.partitions, table.config
        slaves = [(n, node) for n, each in enumerate(partitions) for node in each.slaves]
        lags = [
            offset.lag_bytes
            for n, node in slaves
            if self.is_up(node) and (offset := self.offset(table, n, node))
        ]
        return {
            "table": table.name,
            "partitions": len(partitions),
            "masters": sum(each.master is not None for each in partitions),
            "slaves": len(slaves),
            "slaves_up": sum(self.is_up(node) for _, node in slaves),
            "lag_bytes": max(lags, default=None),
            "replicas": config.replicas,
            "ack": config.ack,
            "min_replicas": config.min_replicas,
            "on_meta_loss": config.on_meta_loss,
            "lag_max_bytes": config.lag_max_bytes,
        }

    def partitions(self, table: Table) -> list[dict[str, Any]]:
        return [
            self._partition(table, number, each) for number, each in enumerate(table.partitions)
        ]

    def _partition(self, table: Table, number: int, partition: Partition) -> dict[str, Any]:
        slots, master = table.slots_of(number), partition.master
        offset = None if master is None else self.offset(table, number, master)
        return {
            "partition": number,
            "slots": [slots.start, slots.stop - 1],
            "state": partition.state.value if master is not None else "no master",
            "master": master,
            "preferred": partition.preferred,
            "epoch": partition.epoch,
            "sequence": None if offset is None else offset.sequence,
            "slaves": [self._slave(table, number, node) for node in partition.slaves],
        }

    def _slave(self, table: Table, number: int, node: NodeId) -> dict[str, Any]:
        offset = self.offset(table, number, node)
        return {
            "node": node,
            "state": self._slave_state(table, number, node),
            "lag_bytes": None if offset is None else offset.lag_bytes,
            "contact_ms": None if offset is None else offset.contact_ms,
            "sequence": None if offset is None else offset.sequence,
        }

    def _slave_state(self, table: Table, number: int, node: NodeId) -> str:
        if not self.is_up(node):
            return "down"
        if node in table.partitions[number].lagging:
            return "lagging"
        offset = self.offset(table, number, node)
        return "in sync" if offset is None or offset.is_candidate else "syncing"

    def nodes(self) -> list[dict[str, Any]]:
        return [self._node(each) for _, each in sorted(self.topology.nodes.items())]

    def _node(self, node: NodeInfo) -> dict[str, Any]:
        report = self._reports.get(node.id)
        partitions = [each for _, _, each in self._all() if node.id in each.replicas]
        return {
            "node": node.id,
            "state": node_state(node),
            "data": node.addresses.data,
            "replication": node.addresses.replication,
            "admin": node.addresses.admin,
            "failure_domain": node.failure_domain,
            "masters": sum(each.master == node.id for each in partitions),
            "replicas": len(partitions),
            "heard_ms": None if report is None else report.heard_ms,
            "applied_epoch": None if report is None else report.applied_epoch,
        }

    def _all(self) -> Iterator[tuple[Table, int, Partition]]:
        for table in self.topology.tables.values():
            for number, partition in enumerate(table.partitions):
                yield table, number, partition

    def moves(self) -> MigrationProgress:
        return progress_of(self.topology, self._reports)

    # What is wrong

    def problems(self) -> list[str]:
        """The worst first: what cannot be written, then what may soon not be."""
        if not self.topology.nodes:
            return ["there are no nodes: start one by `raftwood kv node start`"]
        tables = self.topology.tables.values()
        return [
            *(text for table in tables for text in self._without_master(table)),
            *(text for table in tables for text in self._too_few(table)),
            *self._down(),
            *self._waiting_for(),
            *(text for table in tables for text in self._behind(table)),
        ]

    def _without_master(self, table: Table) -> Iterator[str]:
        headless = [n for n, each in enumerate(table.partitions) if each.master is None]
        if not headless:
            return
        nodes = sorted({node for n in headless for node in table.partitions[n].slaves})
        down = [each for each in nodes if not self.is_up(each)]
        remedy = f"start {_named('node', down)}" if down else "see `raftwood kv table info`"
        yield (
            f"{_named('partition', headless)} of table {table.name} without a master: {remedy}, or "
            f"give up what is missing by `raftwood kv table master {table.name} PARTITION NODE "
            "--lose-writes`"
        )

    def _too_few(self, table: Table) -> Iterator[str]:
        wanted = table.config.min_replicas
        few = [
            number
            for number, each in enumerate(table.partitions)
            if each.master is not None and sum(map(self.is_up, each.replicas)) < wanted
        ]
        if few:
            yield (
                f"{_named('partition', few)} of table {table.name} with fewer nodes up than its "
                f"min_replicas, {wanted}: writes there are not acked"
            )

    def _down(self) -> Iterator[str]:
        for row in self.nodes():
            if not self.is_up(row["node"]):
                yield (
                    f"node {row['node']} ({row['data']}) is down, with replicas of "
                    f"{row['replicas']} partitions: start it"
                    + ("" if row["replicas"] else ", or `raftwood kv node remove` it")
                )

    def _behind(self, table: Table) -> Iterator[str]:
        states: dict[tuple[NodeId, str], list[int]] = {}
        for number, partition in enumerate(table.partitions):
            for node in partition.slaves:
                what = self._trouble(table, number, node)
                if what:
                    states.setdefault((node, what), []).append(number)
        for (node, what), numbers in states.items():
            yield f"node {node} {what} of {_named('partition', numbers)} of table {table.name}"

    @staticmethod
    def _is_coming(table: Table, number: int, node: NodeId) -> bool:
        """Whether it is the target of a migration: then it is behind because it has just begun."""
        migration = table.partitions[number].migration
        return migration is not None and migration.target == node

    def _waiting_for(self) -> Iterator[str]:
        """Nodes that something moves to, and that are not there."""
        moves = Counter(
            migration.target
            for _, _, partition in self._all()
            for migration in partition.migrations
            if not self.is_up(migration.target)
        )
        for node, count in sorted(moves.items()):
            yield (
                f"{count} replicas move to node {node}, which is down: start it, or see `raftwood "
                "kv cluster cancel`"
            )

    def _trouble(self, table: Table, number: int, node: NodeId) -> str:
        offset = self.offset(table, number, node)
        if not self.is_up(node) or offset is None or self._is_coming(table, number, node):
            return ""
        if node in table.partitions[number].lagging:
            return "has missed too much to become master"
        contact_ms = offset.contact_ms
        master = table.partitions[number].master
        if master is not None and (contact_ms is None or contact_ms > CONTACT_MS_MAX):
            return "does not hear from the master"
        return "" if offset.is_candidate else "is being synced as a slave"


async def overview_of(meta: MetaClient) -> Overview:
    """Asks the meta server."""
    return Overview(await meta.topology(), await meta.reports())


def node_state(node: NodeInfo) -> str:
    """As people read it."""
    return ("up" if node.is_up else "down") + (", draining" if node.is_draining else "")


def _named(kind: str, names: Sequence[object]) -> str:
    shown = ", ".join(map(str, names[:_NAMED_MAX]))
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{kind}{'' if len(names) == 1 else 's'} {shown}{more}"


_MOVES: Final = {
    "table": "table",
    "partition": "partition",
    "role": "role",
    "source": "from",
    "target": "to",
}
_MASTERS: Final = {
    "table": "table",
    "partition": "partition",
    "source": "master so far",
    "target": "then",
}
_NODES: Final = {
    "node": "node",
    "replicas_before": "replicas",
    "replicas_after": "then",
    "masters_before": "masters",
    "masters_after": "then",
}
_SHOWN_MAX: Final = 200
_PARTS: Final = 1_000
"""Of one move, so that a bar goes on while it is copied."""


def plan_data(plan: ClusterPlan) -> dict[str, Any]:
    """A plan as plain data, with its numbers."""
    whole: dict[str, Any] = msgspec.to_builtins(plan)
    del whole["changes"]
    counts = {"moves": len(plan.moves), "masters": len(plan.masters), "changes": len(plan.changes)}
    return {"counts": counts, **whole}


def show_plan(plan: ClusterPlan, output: Format) -> None:
    if output == "json":
        write_json(plan_data(plan))
        return
    if not plan.changes:
        write_line(f"at epoch {plan.epoch}: nothing is to be done")
    else:
        write_line(
            f"at epoch {plan.epoch}: {len(plan.moves)} moves (at least {plan.moves_min} are "
            f"needed), {len(plan.masters)} masters change, {len(plan.changes)} changes in all"
        )
    for rows, columns in ((plan.moves, _MOVES), (plan.masters, _MASTERS), (plan.nodes, _NODES)):
        if rows:
            write_line("")
            shown = [msgspec.structs.asdict(each) for each in rows[:_SHOWN_MAX]]
            write_rows(shown, columns, "text")
            if len(rows) > _SHOWN_MAX:
                write_line(f"and {len(rows) - _SHOWN_MAX} more: see them by --format json")
    if plan.changes_later:
        write_line(f"{plan.changes_later} changes are left for a plan after this one")
    for text in plan.uneven:
        write_line(f"uneven: {text}")
    if plan.changes:
        write_line("")
        write_line(f"nothing was changed; to do exactly this, give --epoch {plan.epoch}")


class MoveBar:
    """How far moves are, with an estimate; use it as a context manager."""

    def __init__(self) -> None:
        self._bar = ProgressBar("moving")
        self._total = 0
        self._copied: dict[tuple[str, int, str], int] = {}
        """By replica, those that are copied by now as well."""

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def show(self, progress: MigrationProgress) -> None:
        self._total = max(self._total, progress.total)
        parts = (self._total - len(progress.moving)) * _PARTS
        for each in progress.moving:
            if each.copy_bytes:
                key = (each.table, each.partition, each.target)
                self._copied[key] = each.copied_bytes
                parts += _PARTS * each.copied_bytes // each.copy_bytes // 2
            elif each.step not in ("waiting", "copying"):
                parts += _PARTS * 3 // 4
        self._bar.show(
            parts, self._total * _PARTS, progress_text(progress), sum(self._copied.values())
        )


def progress_text(progress: MigrationProgress) -> str:
    """In one line."""
    steps = [f"{count} {step}" for step, count in progress.steps.items() if count]
    parts = [f"{progress.done} of {progress.total} moved", *steps]
    down = sorted({each.target for each in progress.moving if not each.is_target_up})
    if down:
        parts.append(f"nodes that are down are waited for: {', '.join(down)}")
    if progress.behind:
        parts.append(f"{progress.behind} new slaves behind")
    if progress.handovers:
        parts.append(f"{progress.handovers} masters to be handed over")
    return ", ".join(parts)
