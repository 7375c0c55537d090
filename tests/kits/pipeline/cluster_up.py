"""`raftwood cluster up` as processes, which are killed and started again one by one."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from raftwood.app.cluster_network import operator_network
from raftwood.app.commands.source import Source
from raftwood.app.parts import LogHubPart, Parts
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client import LogHubClient
from raftwood.logservice.wire import LOCATE
from raftwood.net.stores import Stores
from tests.kits.pipeline.standalone import options_of
from tests.kits.ports import consecutive_ports

STORES = 3
GATEWAYS = 2
START_S_MAX = 90.0
STOP_S_MAX = 60.0
ASK_MS_MAX = 5_000


class ClusterUp:
    """Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._output = folder / "cluster.out"
        self._restarted: list[subprocess.Popen[bytes]] = []
        self._up: subprocess.Popen[bytes]
        self.hub: LogHubPart

    def __enter__(self) -> Self:
        ready = self._folder / "cluster.json"
        command = (sys.executable, "-m", "raftwood.app", "cluster", "up")
        parts = (f"--stores={STORES}", f"--gateways={GATEWAYS}", "--bookies=0", "--kv-nodes=0")
        given = (*parts, f"--data={self._folder / 'data'}")
        ports = f"--port-base={consecutive_ports(STORES + 3 * GATEWAYS)}"
        with self._output.open("ab") as output:
            self._up = subprocess.Popen(
                (*command, *given, ports, f"--ready-file={ready}"),
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        try:
            self._wait_until(ready)
        except BaseException:
            self.__exit__()  # which a context manager that did not begin is not asked for
            raise
        return self

    def _wait_until(self, ready: Path) -> None:
        deadline = time.monotonic() + START_S_MAX
        while not ready.exists():
            assert self._up.poll() is None, self._output.read_text()
            assert time.monotonic() < deadline, self._output.read_text()
            time.sleep(0.05)
        self.hub = msgspec.json.decode(ready.read_bytes(), type=Parts).loghub
        self._commands = {_name(each): each.cmdline() for each in self._children()}
        self._ids = {_name(each): each.pid for each in self._children()}

    def __exit__(self, *_: object) -> None:
        for process in self._restarted:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()  # which ends it
            process.stdout.close()
            process.wait(STOP_S_MAX)
        self._up.send_signal(signal.SIGTERM)
        try:
            self._up.wait(STOP_S_MAX)
        finally:
            self._up.kill()
            self._up.wait()

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self._up.pid).children()

    # Faults

    def kill(self, name: str) -> None:
        os.kill(self._ids.pop(name), signal.SIGKILL)

    def restart(self, name: str) -> None:
        """As it was started before; returns once it serves."""
        with (self._folder / "data" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self._commands[name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._restarted.append(process)
        self._ids[name] = process.pid
        assert process.stdout is not None
        assert process.stdout.readline(), f"{name} could not start: see {log.name}"

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
            self.hub.native, key_id=self.hub.access_key_id, secret=self.hub.access_key_secret
        )


def _name(process: psutil.Process) -> str:
    """By what it was started with."""
    words = process.cmdline()
    settings = dict(each.removeprefix("--set=").split("=", 1) for each in words if "--set=" in each)
    store = settings.get("node.store_id")
    return f"store-{store}" if store else f"gateway-{settings['gateway.listen'].split(':')[1]}"


async def _leader(config: str, log: str, alive: list[int]) -> int:
    settings = Source(config=config).load().settings
    with real_environment() as environment:
        stores = Stores(environment, operator_network(settings), settings.cluster.addresses())
        try:
            for store in alive:
                channel = await stores.connected(store, ASK_MS_MAX)
                named: Any = await channel.ask(LOCATE, log, ASK_MS_MAX)
                # By its name HAKeeper answers, which hears of it later than the replicas.
                found: Any = await channel.ask(LOCATE, named.shard, ASK_MS_MAX)
                if found.leader:
                    return int(found.leader)
        finally:
            await stores.close()
    raise AssertionError(f"nobody leads log {log}")
