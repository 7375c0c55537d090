"""A ring of receivers as processes over one log store, and those that ship to it: `raftwood ship`,
and programs that log. Each can be killed, paused and brought back.
"""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from raftwood.base.configuration import load_configuration
from raftwood.base.errors import RaftwoodError
from raftwood.base.seams import MetaStore
from raftwood.cli.command_line import run
from raftwood.cli.ship_status import STATUS_FILE, ShipStatus, read_status
from raftwood.clogs.client import ShipperStatus
from raftwood.clogs.configuration import HaRules, LogServer, RingConfiguration
from raftwood.clogs.configuration_store import ConfigurationStore
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client import LogHubClient
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.loghub.server.access import AccessControl
from raftwood.loghub.server.metadata import Metadata
from raftwood.server.cluster_client import connected_metastore
from raftwood.server.settings import Settings
from tests.kits.clogs import program
from tests.kits.clogs.program import Plan, Report
from tests.kits.ports import LOCAL, free_ports
from tests.kits.processes import RAFTWOOD, RealProcess

PROJECT, LOGSTORE = "p", "lines"
REFUSED = "the ring's configuration is refused, and the last good one stays"
"""Who ships says so."""
WAIT_S_MAX = 120.0
"""For what takes a second where the machine has nothing else to do."""
HA = HaRules(check_gap_ms=200, invalid_checks_max=3, isolation_first_ms=300)
QUICK_CLIENT: Mapping[str, Any] = {
    "linger_ms": 10,
    "retry_first_ms": 20,
    "retry_longest_ms": 500,
    "exit_ms": 60_000,
}
QUICK_TAIL: Mapping[str, Any] = {
    "poll_ms": 50,
    "scan_ms": 100,
    "grace_ms": 200,
    "retry_ms": 100,
}
_QUICK: Mapping[str, Any] = {
    "raft.tick_ms": 100,
    "logs.format": "json",
    "hakeeper.tick_ms": 100,
    "hakeeper.heartbeat_ms": 200,
    "hakeeper.log_shards": 0,
    "hakeeper.log_replicas": 1,
    "hakeeper.hakeeper_replicas": 1,
    "loghub.log_replicas": 1,
}
Result = TypeVar("Result")


def adds_up(status: ShipperStatus) -> bool:
    """Nothing is left uncounted."""
    counters = status.counters
    known = counters.acked + counters.dropped + counters.refused + status.held_lines
    return counters.taken + counters.resumed == known


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline, f"not seen in time: {what}"
        time.sleep(0.02)


class ShipProcess(RealProcess):
    """`raftwood ship`, through all its lives."""

    state: Path

    def shipped(self) -> ShipStatus | None:
        """What this life has told last."""
        try:
            found = read_status(str(self.state / STATUS_FILE))
        except FileNotFoundError:
            return None
        return found if found.process == self.pid else None

    def status(self) -> ShipperStatus | None:
        found = self.shipped()
        return None if found is None else found.shipper

    def holds(self, path: Path) -> bool:
        """Whether the process has the file open that has this name now."""
        if not self.is_running:
            return False
        try:
            return any(each.readlink() == path for each in Path(f"/proc/{self.pid}/fd").iterdir())
        except FileNotFoundError:  # one was closed meanwhile, or it has ended
            return False


class ProgramProcess(RealProcess):
    """A program that logs, as `LogServicePlan` says."""

    def report(self) -> Report:
        """What this life has told last."""
        lines = self.output.read_bytes().split(b"\n")[:-1]
        return msgspec.json.decode(lines[-1], type=Report) if lines else Report()

    def status(self) -> ShipperStatus | None:
        return self.report().status


def new_program(
    folder: Path, name: str, plan: Plan, *, wrapper: Sequence[str] = ()
) -> ProgramProcess:
    """To be started."""
    file = folder / f"{name}.json"
    file.write_bytes(msgspec.json.encode(plan))
    command = (*wrapper, sys.executable, str(Path(program.__file__)), str(file))
    return ProgramProcess(name, folder, command)


class ClogsProcesses:
    """Use `clogs_processes`; nothing of it outlives the block."""

    def __init__(self, folder: Path, *, receivers: int) -> None:
        self._folder = folder
        self.config = folder / "cluster.toml"
        store, *ports = free_ports(1 + 2 * receivers)
        names = [f"log-{number}" for number in range(1, receivers + 1)]
        self._native = dict(zip(names, ports, strict=False))
        self._store_address = f"{LOCAL}:{store}"
        self.servers = [
            LogServer(LOCAL, port, name=name)
            for name, port in zip(names, ports[receivers:], strict=True)
        ]
        self._secrets = {
            name: secrets.token_urlsafe(32)
            for name in ("stores", "clients", "readers", "operators")
        }
        self.key: AccessKey | None = None
        self.store = self._process(
            "store",
            ("logservice", "start"),
            {
                "node.store_id": 1,
                "node.data_folder": folder / "store-data",
                "node.listen": self._store_address,
            },
        )
        self.receivers = {each.name: self._receiver(each) for each in self.servers}
        self._others: list[RealProcess] = []

    def _receiver(self, server: LogServer) -> RealProcess:
        own = {
            "gateway.listen": f"{LOCAL}:{self._native[server.name]}",
            "gateway.http_listen": "",
            "clogs.listen": server.address,
            "clogs.project": PROJECT,
            "clogs.logstore": LOGSTORE,
        }
        return self._process(server.name, ("gateway", "start"), own)

    def _process(self, name: str, command: tuple[str, ...], own: Mapping[str, Any]) -> RealProcess:
        return RealProcess(name, self._folder, self._command(*command, own=own))

    def _command(self, *arguments: str, own: Mapping[str, Any]) -> tuple[str, ...]:
        sets = [f"--set={key}={value}" for key, value in own.items()]
        return (*RAFTWOOD, *arguments, f"--config={self.config}", *sets)

    def _write_file(self) -> None:
        values: dict[str, Any] = {
            "cluster.members": [f"1={self._store_address}"],
            **{f"secrets.{name}": secret for name, secret in self._secrets.items()},
            **_QUICK,
            **{f"clogs_client.{name}": value for name, value in self.client_settings().items()},
        }
        self.config.touch(mode=0o600)
        self.config.write_text(
            "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
        )

    def client_settings(self) -> dict[str, Any]:
        """Of who ships."""
        found = {"servers": [each.address for each in self.servers], **QUICK_CLIENT}
        if self.key is not None:
            found |= {"access_key": self.key.id, "access_secret": self.key.secret}
        return found

    def start(self, *, shards: int) -> None:
        """All of it, with a logstore, and a configuration of the ring."""
        self._write_file()
        self.store.begin()
        for each in self.receivers.values():
            each.begin()
        self.store.wait_ready()
        self.key = self.with_metastore(_new_key)
        self._write_file()
        self.configure(RingConfiguration(tuple(self.servers), ha=HA))
        for each in self.receivers.values():
            each.wait_ready()
        with self.client() as client:
            client.create_project(PROJECT)
            client.create_logstore(PROJECT, LOGSTORE, shard_count=shards)

    def discard(self) -> None:
        for each in [*self._others, *self.receivers.values(), self.store]:
            each.discard()

    def strange_words(self, *expected: str) -> list[str]:
        """What any process has said that is more than a warning."""
        return [
            f"{each.name}: {what}"
            for each in [*self._others, *self.receivers.values(), self.store]
            for level, what in each.events()
            if level not in ("debug", "info", "warning") and what not in expected
        ]

    # Who ships

    def ship(self, paths: str, *, name: str, state: Path) -> ShipProcess:
        """To be started."""
        tail = self._folder / "tail.toml"
        tail.write_text("\n".join(f"{key} = {value}" for key, value in QUICK_TAIL.items()))
        own = {"logs.format": "json"}
        command = self._command(
            *("ship", paths, f"--state={state}", f"--settings={tail}", f"--name={name}"), own=own
        )
        found = ShipProcess("ship", self._folder, command)
        found.state = state
        self._others.append(found)
        return found

    def program(self, plan: Plan) -> ProgramProcess:
        """To be started."""
        found = new_program(self._folder, f"program-{plan.life}", plan)
        self._others.append(found)
        return found

    # Asking

    def client(self) -> LogHubClient:
        """Close it."""
        assert self.key is not None
        natives = ",".join(f"{LOCAL}:{port}" for port in self._native.values())
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            try:
                return LogHubClient.connect(
                    natives, access_key=self.key.id, access_secret=self.key.secret
                )
            except RaftwoodError:
                # A key that was just made is not known to every gateway yet.
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def with_metastore(self, work: Callable[[MetaStore], Awaitable[Result]]) -> Result:
        async def main() -> Result:
            with real_environment() as environment:
                settings = load_configuration(Settings, file=str(self.config)).settings
                deadline = time.monotonic() + WAIT_S_MAX
                while True:
                    try:
                        async with connected_metastore(environment, settings, None) as store:
                            return await work(store)
                    except RaftwoodError:
                        if time.monotonic() > deadline:
                            raise
                    await asyncio.sleep(0.05)

        return asyncio.run(main())

    def configure(self, configuration: RingConfiguration) -> int:
        """Its version."""

        async def work(store: MetaStore) -> int:
            return (await ConfigurationStore(store, "default").set(configuration)).version

        return self.with_metastore(work)

    def command(self, *arguments: str) -> int:
        """`raftwood clogs config` in this process; its exit status."""
        connect = f"--connect={self._store_address}"
        return run(["clogs", "config", *arguments, connect, f"--config={self.config}"])

    def lines(self) -> dict[str, list[str]]:
        """All that is stored, by file and in the order in which it can be read."""
        found: dict[str, list[str]] = {}
        with self.client() as client, client.reader(PROJECT, LOGSTORE) as reader:
            for record in reader:
                found.setdefault(str(record.topic), []).append(str(record.contents["message"]))
        return found


async def _new_key(store: MetaStore) -> AccessKey:
    with real_environment() as environment:
        return await AccessControl(environment, Metadata(store)).create({"*": AccessRole.ADMIN})


@contextmanager
def clogs_processes(folder: Path, *, receivers: int, shards: int) -> Iterator[ClogsProcesses]:
    """A ring that runs."""
    cluster = ClogsProcesses(folder, receivers=receivers)
    try:
        cluster.start(shards=shards)
        yield cluster
    finally:
        cluster.discard()
