"""A ring of receivers, which can be killed and started again.

One is the gateway of `raftwood standalone`, the others are processes of their own.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Final, Self

import msgspec

from raftwood.base.configuration import load_configuration
from raftwood.base.errors import InternalError
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

FIRST: Final = "gateway-1"
"""The one in standalone's process."""
OTHERS: Final = ("gateway-2", "gateway-3")
HA_RULES: Final = HaRules(check_gap_ms=250, invalid_checks_max=3, isolation_first_ms=1_000)
"""So that a receiver that is gone is seen within a second."""
_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 30.0
_LOOK_S: Final = 0.05


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
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        os.makedirs(self._folder, exist_ok=True)
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
        if os.path.exists(self._ready(name)):
            os.remove(self._ready(name))
        with open(self._log(name), "ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 (ourselves)
                [
                    *(sys.executable, "-m", "raftwood.cli.child_process", "gateway", "start"),
                    *("--config", self._service.config, "--connect", self._service.address),
                    *("--ready-file", self._ready(name), "--set=dlog.store=bookies"),
                    f"--set=gateway.listen={self._native[name]}",
                    "--set=gateway.http_listen=",
                    f"--set=clogs.listen={self.addresses[name]}",
                    *self._target.flags(),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={key: value for key, value in os.environ.items() if "RAFTWOOD_" not in key},
                # An interrupt at the terminal is the parent's, who ends it in order.
                start_new_session=True,
            )

    def wait_ready(self, name: str) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while not os.path.exists(self._ready(name)):
            if self._processes[name].poll() is not None or time.monotonic() > deadline:
                raise InternalError(f"receiver {name} did not start: see {self._log(name)}")
            time.sleep(_LOOK_S)

    def kill(self, name: str) -> int:
        """With -9; when it was gone, on the clock that all processes share."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        now_ns = time.monotonic_ns()  # nothing that is given to anybody from now on goes there
        process.communicate()
        return now_ns

    def close(self, *, is_orderly: bool) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM if is_orderly else signal.SIGKILL)
        for process in self._processes.values():
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()

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

    def _log(self, name: str) -> str:
        return f"{self._folder}/{name}.log"

    def _ready(self, name: str) -> str:
        return f"{self._folder}/{name}.ready"
