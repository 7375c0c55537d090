"""Log stores as real processes, started by `raftwood logservice start`, and clients of them."""

import asyncio
import json
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from raftwood.base.configuration import compose
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.hakeeper.commands import ClusterView, KeeperShardView
from raftwood.logservice.hakeeper.state import ClusterPhase
from raftwood.net.stores import Stores
from raftwood.server.cluster import client_network, operator_network
from raftwood.server.settings import Settings
from tests.kits.ports import LOCAL, free_ports
from tests.kits.processes import RAFTWOOD, StoreProcess

# Generous: the machine may be busy with much else.
WAIT_S_MAX = 120.0
CLIENT_TIMEOUT_MS = 120_000
SNAPSHOT_ENTRIES = 10

FAST: Mapping[str, Any] = {
    "raft.tick_ms": 100,
    "raft.message_bytes_max": 64 << 10,
    "raft.in_flight_bytes_max": 256 << 10,
    "log.segment_bytes": 1 << 20,
    "log.cache_bytes_max": 1 << 20,
    "log.full_retry_ms": 50,
    "logs.format": "json",
    "logservice.record_bytes_max": 64 << 10,
    "logservice.truncation_ms": 100,
    "logservice.snapshot_entries": SNAPSHOT_ENTRIES,
    "logservice.disk_alarm_bytes": 0,
    "logservice.disk_refuse_bytes": 0,
    "hakeeper.tick_ms": 100,
    "hakeeper.heartbeat_ms": 200,
    "hakeeper.store_down_ticks": 30,
    "hakeeper.zombie_ticks": 30,
    "hakeeper.bootstrap_grace_ticks": 15,
}
"""Ticks are short, segments and snapshots small, so that all happens within seconds."""


class LogNode(StoreProcess):
    """One log store's process."""

    @property
    def is_ready(self) -> bool:
        if not super().is_ready:
            return False
        self.pid = int(self.ready_file.read_text().split()[1])
        return True

    async def says(self, event: str, **about: Any) -> None:
        """Wait until its log has an event, and one with these fields."""
        deadline = time.monotonic() + WAIT_S_MAX
        while not self.told(event, **about):
            what = f"{event!r} with {about}"
            assert time.monotonic() < deadline, f"store {self.store} does not say {what}"
            await asyncio.sleep(0.05)

    def log_cut(self, shard: int) -> int:
        """Up to which entry it says that it has cut a shard's log."""
        told = self.told("log cut", shard=shard)
        return max((int(each["index"]) for each in told), default=0)

    def newest_snapshot(self, shard: int) -> int:
        """The index of the last one that is whole."""
        names = (path.stem.split("-") for path in self.folder.glob(f"snapshots/{shard}-*.snapshot"))
        return max((int(index) for _, index in names), default=0)

    def oldest_segment(self) -> int:
        """The number of the first one that its log still has."""
        return min(int(path.stem) for path in self.folder.glob("log/*.segment"))

    def disk_bytes(self) -> int:
        """What the store's log takes, segments that are kept for reuse included."""
        files = (each for each in self.folder.rglob("*") if each.is_file())
        return sum(each.stat().st_size for each in files)


class LogProcesses:
    """Use it as a context manager; no store and no connection outlives it."""

    def __init__(
        self,
        environment: Environment,
        folder: Path,
        *,
        first: int = 3,
        later: int = 0,
        settings: Mapping[str, Any] | None = None,
        hosts: Mapping[int, str] | None = None,
        wrappers: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self._environment = environment
        self._file = folder / "cluster.toml"
        stores = range(1, first + later + 1)
        ports = free_ports(len(stores))
        self.nodes = {
            store: LogNode(
                f"store-{store}",
                store,
                folder,
                f"{(hosts or {}).get(store, LOCAL)}:{ports.pop()}",
                (*RAFTWOOD, "logservice", "start", f"--config={self._file}"),
            )
            for store in stores
        }
        self.first = tuple(range(1, first + 1))
        self.members = {store: self.nodes[store].address for store in stores}
        """Where others reach the stores; a proxy takes a place here, before they start."""
        self.settings = {**FAST, **(settings or {})}
        self.own_settings: dict[int, dict[str, Any]] = {store: {} for store in stores}
        """Of single stores, from their next start on."""
        self.expected_errors: tuple[str, ...] = ()
        """Which stores may log, in this test."""
        self._wrappers = wrappers or {}
        self._secrets = {name: secrets.token_urlsafe(32) for name in _SECRETS}
        self._connections: Stores | None = None
        self._keeper: KeeperClient | None = None
        self._clients: list[AsyncLogClient] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close()
        if self._keeper is not None:
            await self._keeper.close()
        if self._connections is not None:
            await self._connections.close()
        for node in self.nodes.values():
            node.discard()

    # Processes

    def _write_file(self) -> None:
        members = [f"{store}={self.members[store]}" for store in self.first]
        lines = [f"cluster.members = {json.dumps(members)}"]
        lines += [f'secrets.{name} = "{secret}"' for name, secret in self._secrets.items()]
        lines += [f"{name} = {json.dumps(value)}" for name, value in self.settings.items()]
        self._file.write_text("\n".join(lines))
        self._file.chmod(0o600)

    def launch(self, *stores: int, joins: bool = False) -> None:
        """Start processes without waiting for them."""
        self._write_file()
        for store in stores:
            node = self.nodes[store]
            own = {
                "node.store_id": store,
                "node.data_folder": node.folder,
                "node.listen": node.address,
                "node.advertise": self.members[store],
                **self.own_settings[store],
            }
            arguments = [f"--set={name}={value}" for name, value in own.items()]
            arguments += ["--join"] if joins else []
            node.begin(*arguments, wrapper=self._wrappers.get(store, ()))

    async def start(self, *stores: int, joins: bool = False) -> None:
        """Start processes and wait until they serve; all first ones where none is named."""
        chosen = stores or self.first
        self.launch(*chosen, joins=joins)
        for store in chosen:
            await self.nodes[store].ready()

    async def kill(self, *stores: int) -> None:
        """With SIGKILL, all at once."""
        for store in stores:
            self.nodes[store].signal(signal.SIGKILL)
        for store in stores:
            await self.nodes[store].ended()

    async def stop(self) -> None:
        """End all that run in order, at once."""
        running = [node for node in self.nodes.values() if node.is_running]
        for node in running:
            node.signal(signal.SIGTERM)
        for node in running:
            assert await node.ended() == 0, node.tail()
        for node in self.nodes.values():
            if node.log.exists():
                strange = [what for level, what in node.events() if level not in _USUAL]
                strange = [what for what in strange if what not in self.expected_errors]
                assert not strange, f"store {node.store} said {strange}"

    # Clients

    def app_settings(self) -> Settings:
        self._write_file()
        return compose(Settings, data=self._file.read_bytes(), file=str(self._file)).settings

    async def client(
        self, shard: int | str = 1, *, stores: Sequence[int] = (), **options: Any
    ) -> AsyncLogClient:
        """Closed at the end at the latest; asks some stores first, all where none is named."""
        addresses = [self.members[store] for store in stores or self.members]
        options = {"timeout_ms": CLIENT_TIMEOUT_MS, **options}
        network = client_network(self.app_settings())
        client = await AsyncLogClient.connect(
            self._environment, network, addresses, shard=shard, **options
        )
        self._clients.append(client)
        return client

    @property
    def stores(self) -> Stores:
        """An operator's connections to all stores."""
        if self._connections is None:
            network = operator_network(self.app_settings())
            self._connections = Stores(self._environment, network, self.members)
        return self._connections

    @property
    def keeper(self) -> KeeperClient:
        """An operator's."""
        if self._keeper is None:
            self._keeper = KeeperClient(self.stores, timeout_ms=CLIENT_TIMEOUT_MS)
        return self._keeper

    # What HAKeeper sees

    async def seen(
        self, what: str, is_so: Callable[[ClusterView], bool], within_s: float = WAIT_S_MAX
    ) -> ClusterView:
        """The cluster as HAKeeper sees it, once it is as it should be."""
        deadline = time.monotonic() + within_s
        last: object = None
        while time.monotonic() < deadline:
            try:
                view = last = await self.keeper.describe()
                if is_so(view):
                    return view
            except RaftwoodError as error:
                last = error
            await asyncio.sleep(0.05)
        raise AssertionError(f"not seen in time: {what}; last seen: {last}")

    async def runs(self) -> ClusterView:
        """Once the cluster runs, and each shard has as many voters as it wants, and a leader."""
        return await self.seen("a cluster that runs", is_running_well)

    async def alarm(self, text: str) -> str:
        """The whole text of an alarm, once there is one with these words."""

        def texts(view: ClusterView) -> list[str]:
            return [alarm.text for alarm in view.alarms if text in alarm.text]

        return texts(await self.seen(f"alarm {text!r}", lambda view: bool(texts(view))))[0]

    async def no_alarm(self, text: str) -> None:
        await self.seen(
            f"no alarm {text!r}",
            lambda view: not [alarm for alarm in view.alarms if text in alarm.text],
        )

    async def leader(self, shard: int = 1) -> int:
        """Once there is one that lives, as HAKeeper sees it."""
        view = await self.seen(
            f"a leader of shard {shard}",
            lambda view: self.nodes.get(shard_of(view, shard).leader, _NOBODY).is_running,
        )
        return shard_of(view, shard).leader

    def others(self, *stores: int) -> list[int]:
        """The running stores but for some."""
        return [each for each, node in self.nodes.items() if each not in stores and node.is_running]


_SECRETS = ("stores", "clients", "readers", "operators")
_USUAL = ("debug", "info", "warning")
_NOBODY = LogNode("nobody", 0, Path(), "")


@asynccontextmanager
async def log_stores(folder: Path, **options: Any) -> AsyncIterator[LogProcesses]:
    """As `LogProcesses`, with an environment; all stores end in order, without a strange word."""
    with real_environment() as environment:
        async with LogProcesses(environment, folder, **options) as stores:
            yield stores
            await stores.stop()


def shard_of(view: ClusterView, number: int) -> KeeperShardView:
    return next(each for each in view.shards if each.shard == number)


def is_running_well(view: ClusterView) -> bool:
    return view.phase is ClusterPhase.RUNNING and all(
        len(shard.voters) == shard.wanted_voters and not shard.learners and shard.leader
        for shard in view.shards
    )
