"""`raftwood cluster up` as processes, which are killed and started again one by one."""

import asyncio
import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from raftwood.cli.options import Source
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client import LogHubClient
from raftwood.logservice.wire import LOCATE
from raftwood.net.stores import Stores
from raftwood.server.cluster import operator_network
from raftwood.server.parts import LogHubPart, Parts
from tests.kits.pipeline.standalone import options_of
from tests.kits.ports import consecutive_ports
from tests.kits.processes import RAFTWOOD, RealProcess

STORES = 3
GATEWAYS = 2
ASK_MS_MAX = 60_000
POLL_S = 0.05


class ClusterUp:
    """Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        parts = (f"--stores={STORES}", f"--gateways={GATEWAYS}", "--bookies=0", "--kv-nodes=0")
        given = (*parts, f"--data={folder / 'data'}")
        ports = f"--port-base={consecutive_ports(STORES + 3 * GATEWAYS)}"
        self._up = RealProcess("cluster", folder, (*RAFTWOOD, "cluster", "up", *given, ports))
        self._restarted: list[RealProcess] = []
        self.hub: LogHubPart

    def __enter__(self) -> Self:
        try:
            self._up.start()
        except BaseException:
            self._up.discard()  # which a context manager that did not begin is not asked for
            raise
        ready = self._up.ready_file.read_bytes()
        self.hub = msgspec.json.decode(ready, type=Parts).loghub
        children = psutil.Process(self._up.pid).children()
        self._commands = {_name(each): each.cmdline() for each in children}
        self._ids = {_name(each): each.pid for each in children}
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._restarted:
            process.discard()
        try:
            self._up.stop()
        finally:
            self._up.discard()

    # Faults

    def kill(self, name: str) -> None:
        os.kill(self._ids.pop(name), signal.SIGKILL)

    def restart(self, name: str) -> None:
        """As it was started before; returns once it serves."""
        process = _Restarted(f"{name}-again", self._folder, self._commands[name])
        self._restarted.append(process)
        process.launch(process.command)
        process.wait_ready()
        self._ids[name] = process.pid

    def leader(self, log: str) -> str:
        """The store that leads a log."""
        config = str(self._folder / "data" / "cluster.toml")
        alive = [int(name.removeprefix("store-")) for name in self._ids if "store-" in name]
        return f"store-{asyncio.run(_leader(config, log, alive))}"

    @property
    def gateways(self) -> list[str]:
        return [name for name in self._commands if name.startswith("gateway")]

    # As a client

    @property
    def access(self) -> dict[str, str]:
        """As options of Spark."""
        return options_of(self.hub)

    def client(self) -> LogHubClient:
        return LogHubClient.connect(
            self.hub.native, access_key=self.hub.access_key, access_secret=self.hub.access_secret
        )


class _Restarted(RealProcess):
    """Is ready when it says so."""

    @property
    def is_ready(self) -> bool:
        return self.is_running and b"\n" in self.output.read_bytes()


def _name(process: psutil.Process) -> str:
    """By what it was started with."""
    words = process.cmdline()
    settings = dict(each.removeprefix("--set=").split("=", 1) for each in words if "--set=" in each)
    store = settings.get("node.store_id")
    return f"store-{store}" if store else f"gateway-{settings['gateway.listen'].split(':')[1]}"


async def _leader(config: str, log: str, alive: list[int]) -> int:
    settings = Source(config=config).load().settings
    deadline = time.monotonic() + ASK_MS_MAX / 1000
    with real_environment() as environment:
        stores = Stores(environment, operator_network(settings), settings.cluster.addresses())
        try:
            # On a busy machine leaders change by themselves: between two of them nobody leads.
            for store in itertools.cycle(alive):
                channel = await stores.connected(store, ASK_MS_MAX)
                named: Any = await channel.ask(LOCATE, log, ASK_MS_MAX)
                # By its name HAKeeper answers, which hears of it later than the replicas.
                found: Any = await channel.ask(LOCATE, named.shard, ASK_MS_MAX)
                if found.leader:
                    return int(found.leader)
                assert time.monotonic() < deadline, f"nobody leads log {log}"
                await asyncio.sleep(POLL_S)
        finally:
            await stores.close()
    raise AssertionError("no store is alive")
