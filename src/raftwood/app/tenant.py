"""What a store process runs on its raft host: the metastore, or the log service."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.net import Service
from raftwood.raft.host.host import Host


class Tenant(Protocol):
    """Made when the host is open; `close` comes before the host's."""

    def register(self, service: Service) -> None:
        """Take part in what the store serves."""

    async def start(self, *, joins: bool) -> None:
        """Start the groups and all that goes on beside them."""

    def problems(self) -> Mapping[str, str]:
        """Whether it is of use here: a reason why not, or nothing, for each part."""

    async def close(self) -> None: ...


MakeTenant: TypeAlias = Callable[[Environment, Host, Settings, Metrics], Tenant]
