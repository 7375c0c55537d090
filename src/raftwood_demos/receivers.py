"""A ring of receivers, which can be killed and started again.

One is the gateway of `raftwood standalone`, the others are processes of their own.
"""

from typing import Final, Self

import msgspec

from raftwood.base.configuration import load_configuration
from raftwood.clogs.configuration import HaRules, LogServer, RingConfiguration
from raftwood.clogs.configuration_store import ConfigurationStore
from raftwood.clogs.ring import Routing
from raftwood.disk.real_environment import real_environment
from raftwood.net.identity import split_address
from raftwood.server.child_processes import free_addresses
from raftwood.server.cluster_client import connected_metastore
from raftwood.server.event_loop import run
from raftwood.server.parts import Parts
from raftwood.server.settings import Settings
from raftwood_demos.processes import DemoProcess, end_all

FIRST: Final = "gateway-1"
"""The one in standalone's process."""
OTHERS: Final = ("gateway-2", "gateway-3")
HA_RULES: Final = HaRules(check_gap_ms=250, invalid_checks_max=3, isolation_first_ms=1_000)
"""So that a receiver that is gone is seen within a second."""


class ReceiverTarget(msgspec.Struct, frozen=True):
    """Where receivers put what they get."""

    project: str
    logstore: str

    def flags(self) -> tuple[str, ...]:
        return (f"--set=clogs.project={self.project}", f"--set=clogs.logstore={self.logstore}")


class Receivers:
    """Use it as a context manager; `configuration` is the ring's, and stands in the metastore."""

    def __init__(self, folder: str, parts: Parts, target: ReceiverTarget, *, ring: str) -> None:
        self._folder = folder
        self._service = parts.logservice
        self._target = target
        self._ring = ring
        native = free_addresses(2 * len(OTHERS))
        self._native = dict(zip(OTHERS, native, strict=False))
        addresses = (*parts.clogs, *native[len(OTHERS) :])
        self.addresses: dict[str, str] = dict(zip((FIRST, *OTHERS), addresses, strict=True))
        self.configuration = RingConfiguration(
            tuple(
                LogServer(*split_address(address), name=name)
                for name, address in self.addresses.items()
            ),
            ha=HA_RULES,
        )
        self._processes: dict[str, DemoProcess] = {}

    def __enter__(self) -> Self:
        try:
            for name in OTHERS:
                self.start(name)
            for name in OTHERS:
                self.wait_ready(name)
            self._configure()
        except BaseException:
            self.close(is_orderly=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(is_orderly=kind is None)

    def start(self, name: str) -> None:
        """Where it will serve is known; `wait_ready` until it does."""
        self._processes[name] = DemoProcess(
            self._folder,
            name,
            [
                *("gateway", "start", "--config", self._service.config),
                *("--connect", self._service.address, "--set=dlog.store=bookies"),
                f"--set=gateway.listen={self._native[name]}",
                "--set=gateway.http_listen=",
                f"--set=clogs.listen={self.addresses[name]}",
                *self._target.flags(),
            ],
            has_ready_file=True,
        )

    def wait_ready(self, name: str) -> None:
        self._processes[name].wait_ready()

    def kill(self, name: str) -> int:
        """With -9; when it was gone, on the clock that all processes share."""
        process = self._processes.pop(name)
        now_ns = process.kill()  # nothing that is given to anybody from now on goes there
        process.close()
        return now_ns

    def close(self, *, is_orderly: bool) -> None:
        end_all([*self._processes.values()], is_orderly=is_orderly)

    def files_of(self, names: list[str]) -> dict[str, list[str]]:
        """Which of the files each receiver has while all are well."""
        routing = Routing(self.configuration, tuple(self.addresses))
        found: dict[str, list[str]] = {name: [] for name in self.addresses}
        for name in names:
            found[routing.ring_name_of(name)].append(name)
        return found

    def _configure(self) -> None:
        settings = load_configuration(Settings, file=self._service.config).settings

        async def configure() -> None:
            async with connected_metastore(environment, settings, self._service.address) as store:
                rings = ConfigurationStore(store, self._ring, clock=environment.clock)
                await rings.set(self.configuration, "the demo's receivers")

        with real_environment() as environment:
            run(configure())
