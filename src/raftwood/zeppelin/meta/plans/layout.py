"""`Layout`: the nodes of a topology as numbers, and what may become of each."""

from collections.abc import Collection, Sequence

from raftwood.base.errors import Unavailable
from raftwood.zeppelin.meta.plans.quotas import Group
from raftwood.zeppelin.model import NodeId, Table, Topology


class Layout:
    """Those that are up may get something, unless they are leaving or are being emptied. Those
    that are neither able nor leaving keep what they have: it may be that they come back.
    """

    def __init__(
        self, topology: Topology, leaving: Collection[NodeId], *, has_domains: bool = True
    ) -> None:
        self.ids = sorted(topology.nodes)
        self.numbers = {node: number for number, node in enumerate(self.ids)}
        nodes = [topology.nodes[node] for node in self.ids]
        names = {each.failure_domain: number for number, each in enumerate(nodes)}
        self.domains = [names[each.failure_domain] if has_domains else 0 for each in nodes]
        self.leaving = [self.numbers[node] for node in sorted(leaving)]
        self.able = [
            number
            for number, each in enumerate(nodes)
            if each.is_up and not each.is_draining and each.id not in leaving
        ]
        self.kept = {*range(len(nodes))} - {*self.leaving} - {*self.able}

    def items(self, table: Table) -> list[list[int]]:
        return [[self.numbers[node] for node in each.replicas] for each in table.partitions]

    def check_room(self, table: Table, items: Sequence[Sequence[int]]) -> None:
        """Whether there are nodes and failure domains for all replicas; else `Unavailable`."""
        domains = {self.domains[node] for node in self.able}
        for number, nodes in enumerate(items):
            kept = [node for node in nodes if node in self.kept]
            if len(self.able) + len(kept) < len(nodes):
                raise Unavailable(
                    f"partition {number} of table {table.name!r} has {len(nodes)} replicas, and "
                    f"{len(self.able)} nodes could have them: start more nodes, or remove slaves"
                )
            have = len({self.domains[node] for node in nodes})
            could = len(domains | {self.domains[node] for node in kept})
            if could < min(have, len(nodes)):
                raise Unavailable(
                    f"replicas of partition {number} of table {table.name!r} are in {have} failure "
                    f"domains, and nodes of {could} would be left: start nodes in another one, or "
                    "ask for fewer domains"
                )

    def groups(self, items: Sequence[Sequence[int]]) -> list[Group]:
        """The able nodes by failure domain, and how many replicas each domain can have at the most
        and must have: no more of a partition than needed, and one of each if there are enough.
        """
        domains: dict[int, list[int]] = {}
        for node in self.able:
            domains.setdefault(self.domains[node], []).append(node)
        count = len(domains)
        least = dict.fromkeys(domains, 0)
        most = dict.fromkeys(domains, 0)
        for size, number in self._sizes(items).items():
            for domain, nodes in domains.items():
                least[domain] += number if size >= count else 0
                most[domain] += number * (1 if size <= count else min(len(nodes), size - count + 1))
        for replicas in items if self.kept else ():
            kept = [self.domains[node] for node in replicas if node in self.kept]
            for domain in dict.fromkeys(kept):
                if domain in domains:
                    least[domain] -= len(replicas) >= count
                    most[domain] -= len(replicas) <= count
        return [Group(nodes, least[each], most[each]) for each, nodes in domains.items()]

    @staticmethod
    def _sizes(items: Sequence[Sequence[int]]) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for nodes in items:
            sizes[len(nodes)] = sizes.get(len(nodes), 0) + 1
        return sizes
