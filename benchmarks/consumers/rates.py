"""How many records a second one member of a group consumes, of 1, 4 and 16 shards."""

import pathlib
import sys
from typing import Final

import msgspec

from benchmarks.harness.cluster import Cluster, ClusterFailed
from benchmarks.harness.comparison import Steps
from benchmarks.harness.measure import Figures, measure_on
from benchmarks.harness.system import Layout, Load
from benchmarks.loghub.gateway_cluster import GatewayCluster
from benchmarks.loghub.loghub_system import LogHubSystem, gateway_address
from benchmarks.loghub.ways import CONSUME_ARROW, filled
from benchmarks.peers.kafka_consume import topic
from benchmarks.peers.kafka_system import KafkaSystem, addresses

SHARDS: Final = (1, 4, 16)
PAYLOAD_BYTES: Final = 100
WARM_UP_S_MIN: Final = 0.3
OURS: Final = "loghub, leases"
KAFKA: Final = "kafka, group"


class LeasedLogHub(LogHubSystem):
    """Consumed by a worker with leases in SQLite."""

    name = "leases"

    def __init__(self) -> None:
        super().__init__([filled(PAYLOAD_BYTES, CONSUME_ARROW)])

    def load_command(self, layout: Layout, load: Load, leader: int) -> list[str]:  # noqa: ARG002
        return [
            *(sys.executable, "-m", "benchmarks.consumers.rate_load"),
            f"--addresses={gateway_address(layout)}",
            f"--key={pathlib.Path(layout.folder, 'key.json')}",
            f"--store=sqlite:///{layout.folder}/leases.sqlite",
            *load.flags(),
        ]


class GroupedKafka(KafkaSystem):
    """Consumed by the only member of a group."""

    def __init__(self) -> None:
        super().__init__(is_synced=False, topics=[topic(PAYLOAD_BYTES)])

    def load_command(self, layout: Layout, load: Load, leader: int) -> list[str]:  # noqa: ARG002
        program = [sys.executable, "-m", "benchmarks.peers.kafka_group_load"]
        return [*program, f"--addresses={addresses(layout)}", *load.flags()]


class RatePace(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take."""

    warm_s: float
    seconds: float
    rounds: int
    warm_up_factor: float
    """Of what a system asks for."""


def case(shards: int) -> str:
    return f"consume 100 B, {shards} shard{'s' if shards > 1 else ''}"


StreamSystem = LeasedLogHub | GroupedKafka


def measure(name: str, pace: RatePace, folder: pathlib.Path, steps: Steps) -> None:
    """A cluster for each number of shards, in which all rounds are run once it is warm."""
    for system in steps.prepared((name,), _system):
        warm_up_s = max(WARM_UP_S_MIN, system.warm_up_s * pace.warm_up_factor)
        for shards in SHARDS:
            with (
                steps.step(f"{name}: {case(shards)}"),
                _cluster(system, folder=folder, shards=shards) as cluster,
            ):
                cluster.settle()
                _measured(cluster, _load(shards, warm_s=warm_up_s, seconds=pace.seconds))
                for _ in range(pace.rounds):
                    load = _load(shards, warm_s=pace.warm_s, seconds=pace.seconds)
                    steps.loaded(name, case(shards), _measured(cluster, load))


def _measured(cluster: Cluster, load: Load) -> Figures:
    """Again, if a shard's leader changes meanwhile, or the load ends early."""
    try:
        return measure_on(cluster, load)
    except ClusterFailed:
        cluster.settle()
        return measure_on(cluster, load)


def _system(name: str) -> StreamSystem:
    return LeasedLogHub() if name == OURS else GroupedKafka()


def _cluster(system: StreamSystem, *, folder: pathlib.Path, shards: int) -> Cluster:
    made = GatewayCluster if isinstance(system, LogHubSystem) else Cluster
    return made(system, folder=folder, groups=shards)


def _load(shards: int, *, warm_s: float, seconds: float) -> Load:
    return Load(
        in_flight=100_000,
        payload_bytes=PAYLOAD_BYTES,
        warm_s=warm_s,
        seconds=seconds,
        shards=shards,
        is_batched=True,
    )
