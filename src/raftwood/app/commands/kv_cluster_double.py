"""`raftwood kv cluster double`: twice as many partitions, while the table is used."""

from cyclopts import App

from raftwood.app.commands.kv_cluster import Yes
from raftwood.app.commands.kv_order import ORDER, Order
from raftwood.zeppelin.meta.plans import single
from raftwood.zeppelin.meta.plans.plan import Plan
from raftwood.zeppelin.model import Topology

app = App(name="double", help_format="plaintext")


@app.default
def double(table: str, *, yes: Yes = False, order: Order = ORDER) -> int:
    """Give a table twice as many partitions; each is split where it is.

    A table cannot have fewer again. Where it doubles already, this waits for it.
    """

    def planner(topology: Topology) -> Plan:
        found = topology.tables.get(table)
        if found is not None and found.is_doubling:
            return Plan(epoch=topology.epoch, changes=())
        return single.double(topology, table)

    def asks(_: Plan) -> str:
        return f"table {table} will have twice as many partitions, and never fewer again."

    return order.carry_out(
        planner,
        asks=None if yes else asks,
        doubled=table,
        closing=f"table {table} has all its partitions; `raftwood kv cluster balance` spreads them",
    )
