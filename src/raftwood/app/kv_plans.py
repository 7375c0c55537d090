"""Plans and their progress, for people and for machines."""

from typing import Any, Final, Self

import msgspec

from raftwood.app.bar import Bar
from raftwood.app.output import Format, write_json, write_line, write_rows
from raftwood.zeppelin.meta.plans.plan import Plan
from raftwood.zeppelin.meta.plans.progress import Progress

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


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan as plain data, with its numbers."""
    whole: dict[str, Any] = msgspec.to_builtins(plan)
    del whole["changes"]
    counts = {"moves": len(plan.moves), "masters": len(plan.masters), "changes": len(plan.changes)}
    return {"counts": counts, **whole}


def show_plan(plan: Plan, output: Format) -> None:
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
        self._bar = Bar("moving")
        self._total = 0
        self._copied: dict[tuple[str, int, str], int] = {}
        """By replica, those that are copied by now as well."""

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def show(self, progress: Progress) -> None:
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


def progress_text(progress: Progress) -> str:
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
