"""What the store that leads HAKeeper tells of the cluster; the others say nothing of it."""

from collections import Counter
from collections.abc import Callable, Mapping

from raftwood.base.metrics import Metrics
from raftwood.logservice.hakeeper.checkers.planning import Planning
from raftwood.logservice.hakeeper.reports import HAKEEPER_SHARD, ServiceKind
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.hakeeper.state import Phase, State
from raftwood.logservice.hakeeper.state_machine import HaKeeperStateMachine
from raftwood.raft.host.host import Host


def register_keeper_metrics(metrics: Metrics, host: Host, settings: HaKeeperSettings) -> None:
    def where_it_leads(
        read: Callable[[State], Mapping[str, float]],
    ) -> Callable[[], Mapping[str, float]]:
        def read_here() -> Mapping[str, float]:
            if HAKEEPER_SHARD not in host.groups() or not host.is_leading(HAKEEPER_SHARD):
                return {}
            machine = host.machine(HAKEEPER_SHARD)
            assert isinstance(machine, HaKeeperStateMachine)
            return read(machine.state)

        return read_here

    for name, text, label, read in (
        ("state", "1 for how far the cluster is.", "state", _phases),
        ("stores", "Log stores.", "state", lambda state: stores_by_state(state, settings)),
        ("shards", "Shards.", "state", lambda state: shards_by_state(state, settings)),
        ("services", "Services that use the log.", "kind", _services),
    ):
        metrics.pull_gauges(f"hakeeper_{name}", text, label, where_it_leads(read))
    orders = where_it_leads(lambda state: {"all": len(state.orders)})
    metrics.pull_gauge("hakeeper_orders", "Orders under way.", lambda: sum(orders().values()))


def _phases(state: State) -> dict[str, float]:
    return {phase.value: phase is state.phase for phase in Phase}


def stores_by_state(state: State, settings: HaKeeperSettings) -> dict[str, float]:
    planning = Planning(state, settings)
    counts: dict[str, float] = dict.fromkeys(("up", "down", "draining"), 0)
    for number, store in state.stores.items():
        living = "draining" if store.is_draining else "up"
        counts[living if number in planning.live else "down"] += 1
    return counts


def shards_by_state(state: State, settings: HaKeeperSettings) -> dict[str, float]:
    """A shard is healthy that has a leader, and as many voters that serve as it wants."""
    planning = Planning(state, settings)
    counts: dict[str, float] = dict.fromkeys(("healthy", "degraded", "leaderless"), 0)
    for number, shard in state.shards.items():
        serving = sum(planning.is_serving(number, store) for store in shard.voters)
        if not planning.leader(number):
            counts["leaderless"] += 1
        else:
            counts["healthy" if serving >= shard.replicas else "degraded"] += 1
    return counts


def _services(state: State) -> dict[str, float]:
    counts = Counter(service.kind.value for service in state.services.values())
    return {kind.value: counts[kind.value] for kind in ServiceKind}
