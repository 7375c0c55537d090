"""One node takes another's place: it gets what that one has, and leads what that one led."""

from raftwood.base.errors import Unavailable
from raftwood.zeppelin.meta.plans.evening import Outcome
from raftwood.zeppelin.meta.plans.layout import Layout
from raftwood.zeppelin.meta.plans.quotas import Looks
from raftwood.zeppelin.meta.plans.spread import Spread
from raftwood.zeppelin.model import Table


def replaced(layout: Layout, table: Table, new: int, looks: Looks) -> Outcome:
    """What the new node has already goes by way of another one."""
    (old,) = layout.leaving
    items = layout.items(table)
    layout.check_room(table, items)
    spread = Spread(
        items, able=layout.able, leaving=layout.leaving, domains=layout.domains, looks=looks
    )
    quotas = spread.loads()
    quotas[new] += quotas[old]
    quotas[old] = 0
    present = [
        None if each.preferred is None else layout.numbers.get(each.preferred)
        for each in table.partitions
    ]
    moved = spread.load(old)
    spread.even(quotas, present, [0] * len(quotas))
    if spread.load(old):
        raise Unavailable(
            f"node {layout.ids[new]!r} cannot have all that node {layout.ids[old]!r} has of table "
            f"{table.name!r}: that would put replicas into one failure domain; start a node in "
            "another one, or ask for fewer domains"
        )
    masters = [
        node if node is None or node in spread.now[number] else _heir(spread, number, new)
        for number, node in enumerate(present)
    ]
    return Outcome(
        table=table,
        before=items,
        after=spread.now,
        masters_before=present,
        masters_after=masters,
        moves_min=moved,
        uneven=[],
    )


def _heir(spread: Spread, number: int, new: int) -> int:
    """The new node, else whoever came in place of it."""
    came = sorted(spread.now[number] - spread.before[number])
    return new if new in came else came[0]
