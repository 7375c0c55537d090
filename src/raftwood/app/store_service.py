"""What a store tells of itself as a process: who it is, and its metrics."""

import os
from collections.abc import Callable

import msgspec

from raftwood import __version__
from raftwood.base.metrics import Metrics
from raftwood.net import Call, Service, TypedMethod
from raftwood.raft.host.host import Host
from raftwood.raft.host.status import HostFigures


class StoreDescription(msgspec.Struct, frozen=True):
    """A store as a process."""

    store: int
    address: str
    pid: int
    version: str
    groups: list[int]
    groups_led: int


DESCRIBE = TypedMethod(64, "store-describe", request=type(None), response=StoreDescription)
METRICS = TypedMethod(65, "store-metrics", request=type(None), response=bytes)


class StoreService:
    """Serves one store's description and metrics."""

    def __init__(self, host: Host, address: str) -> None:
        self._host = host
        self._address = address
        self._metrics = host_metrics(host)

    def register(self, service: Service) -> None:
        service.typed(DESCRIBE, self._describe)
        service.typed(METRICS, self._render)

    async def _describe(self, _: Call, __: None) -> StoreDescription:
        return StoreDescription(
            store=self._host.id,
            address=self._address,
            pid=os.getpid(),
            version=__version__,
            groups=self._host.groups(),
            groups_led=self._host.figures().groups_led,
        )

    async def _render(self, _: Call, __: None) -> bytes:
        return self._metrics.render()


def host_metrics(host: Host) -> Metrics:
    """A raft host's figures, read when somebody looks."""
    metrics = Metrics(store=str(host.id))

    def counter(name: str, help_text: str, read: Callable[[HostFigures], float]) -> None:
        metrics.pull_counter(name, help_text, lambda: read(host.figures()))

    def gauge(name: str, help_text: str, read: Callable[[HostFigures], float]) -> None:
        metrics.pull_gauge(name, help_text, lambda: read(host.figures()))

    counter("raft_turns_total", "Turns of the raft host.", lambda each: each.turns)
    counter("raft_writes_total", "Writes to the shared log.", lambda each: each.writes)
    gauge("raft_groups", "Groups with a replica here.", lambda each: each.groups)
    gauge("raft_groups_led", "Groups that this store leads.", lambda each: each.groups_led)
    gauge("raft_groups_asleep", "Groups without work.", lambda each: each.groups_asleep)
    gauge("raft_waiting_bytes", "Proposals not applied yet.", lambda each: each.waiting_bytes)
    gauge("raft_cache_bytes", "Entries kept in memory.", lambda each: each.cache_bytes)
    counter("log_flushes_total", "Flushes of the log.", lambda each: each.log.flushes)
    gauge("log_segments", "Files of the log.", lambda each: each.log.segments)
    gauge("log_disk_bytes", "Size of the log on disk.", lambda each: each.log.disk_bytes)
    gauge("log_live_bytes", "Bytes of the log still needed.", lambda each: each.log.live_bytes)
    gauge("log_pending_bytes", "Bytes not yet written.", lambda each: each.log.pending_bytes)
    gauge("log_is_full", "1 while the disk is full.", lambda each: each.log.is_full)
    return metrics
