"""What a store tells of itself as a process: who it is, and its metrics."""

import os

import msgspec

from raftwood import __version__
from raftwood.base.metrics import Metrics
from raftwood.net import Call, Service, TypedMethod
from raftwood.raft.host.host import Host


class StoreDescription(msgspec.Struct, frozen=True):
    """A store as a process."""

    store: int
    address: str
    pid: int
    version: str
    groups: list[int]


DESCRIBE = TypedMethod(64, "store-describe", request=type(None), response=StoreDescription)
METRICS = TypedMethod(65, "store-metrics", request=type(None), response=bytes)


class StoreService:
    """Serves one store's description and metrics."""

    def __init__(self, host: Host, address: str, metrics: Metrics) -> None:
        self._host = host
        self._address = address
        self._metrics = metrics
        host.register_metrics(metrics)

    def register(self, service: Service) -> None:
        service.typed(DESCRIBE, self._describe)
        service.typed(METRICS, self._render)

    async def _describe(self, _: Call, __: None) -> StoreDescription:
        return StoreDescription(
            store=self._host.id,
            address=self._address,
            pid=os.getpid(),
            version=__version__,
            groups=sorted({*self._host.groups(), *self._host.halted()}),
        )

    async def _render(self, _: Call, __: None) -> bytes:
        return self._metrics.render()
