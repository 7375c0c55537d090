"""`raftwood kv cluster`: grow, shrink and balance a cluster, and see how far that is."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.kv_order import ORDER, Order
from raftwood.app.kv_names import node_named, nodes_named
from raftwood.zeppelin.meta.plans import orders, single
from raftwood.zeppelin.meta.plans.plan import Plan
from raftwood.zeppelin.model import Topology

app = App(
    name="cluster",
    help="Grow, shrink and balance: who has which partitions.",
    help_format="plaintext",
)
for name, (place, line) in {
    "status": ("kv_cluster_status:app", "Show what moves, and which nodes are being emptied."),
    "add-slave": ("kv_cluster_partition:add_slave", "Give a partition one replica more."),
    "remove-slave": ("kv_cluster_partition:remove_slave", "Give a partition one replica less."),
    "set-master": ("kv_cluster_partition:set_master", "Let another replica be the master."),
    "migrate": ("kv_cluster_partition:migrate", "Move one replica to another node."),
    "cancel": ("kv_cluster_partition:cancel", "Let what moves stay where it was."),
    "double": ("kv_cluster_double:app", "Give a table twice as many partitions."),
}.items():
    # Loaded when they are called.
    app.command(f"raftwood.app.commands.{place}", name=name, help=line)

Yes = Annotated[bool, Parameter(help="Do it without asking.", negative=())]
FewerDomains = Annotated[
    bool,
    Parameter(
        help="Let replicas of a partition share failure domains where there are too few.",
        negative=(),
    ),
]


@app.command
def balance(
    *,
    table: Annotated[str | None, Parameter(help="This one alone; else all.")] = None,
    order: Order = ORDER,
) -> int:
    """Spread replicas and masters evenly over nodes and failure domains, by the fewest moves."""
    return order.carry_out(lambda topology: orders.balance(topology, table=table))


@app.command
def expand(*nodes: str, order: Order = ORDER) -> int:
    """Give new nodes their share: those that are named, else all that have less than half of it."""
    return order.carry_out(lambda topology: orders.expand(topology, nodes_named(topology, nodes)))


@app.command
def drain(
    *nodes: str,
    undo: Annotated[
        bool, Parameter(help="Let them have something again instead.", negative=())
    ] = False,
    fewer_domains: FewerDomains = False,
    order: Order = ORDER,
) -> int:
    """Empty nodes, and give them nothing new."""

    def planner(topology: Topology) -> Plan:
        named = nodes_named(topology, nodes)
        if undo:
            return orders.undo_drain(topology, named)
        return orders.drain(topology, named, fewer_domains=fewer_domains)

    return order.carry_out(planner)


@app.command
def shrink(
    *nodes: str,
    yes: Yes = False,
    fewer_domains: FewerDomains = False,
    order: Order = ORDER,
) -> int:
    """Empty nodes that are to go, and say when they may be stopped."""

    def asks(plan: Plan) -> str:
        return f"{', '.join(nodes)} will be empty, and {len(plan.moves)} replicas move to others."

    return order.carry_out(
        lambda topology: orders.drain(
            topology, nodes_named(topology, nodes), fewer_domains=fewer_domains
        ),
        asks=None if yes else asks,
        closing=(
            f"{', '.join(nodes)} may be stopped now; then forget them by `raftwood kv cluster "
            f"remove-nodes {' '.join(nodes)}`"
        ),
    )


@app.command(name="replace-node")
def replace_node(
    old: str, new: str, *, fewer_domains: FewerDomains = False, order: Order = ORDER
) -> int:
    """Move all that one node has to another one; the old one may be dead."""
    return order.carry_out(
        lambda topology: orders.replace_node(
            topology,
            old=node_named(topology, old),
            new=node_named(topology, new),
            fewer_domains=fewer_domains,
        ),
        closing=f"{old} may be stopped now, if it is not",
    )


@app.command(name="remove-nodes")
def remove_nodes(*nodes: str, yes: Yes = False, order: Order = ORDER) -> int:
    """Forget nodes that are stopped and have nothing."""

    def asks(_: Plan) -> str:
        return f"{', '.join(nodes)} will be forgotten."

    return order.carry_out(
        lambda topology: single.remove_nodes(topology, nodes_named(topology, nodes)),
        asks=None if yes else asks,
        closing=f"forgot {', '.join(nodes)}",
    )
