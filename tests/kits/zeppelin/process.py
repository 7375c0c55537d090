"""One process of a cluster, a log store or a node: started, killed, paused, stopped."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

from raftwood.zeppelin.model import NodeId
from tests.kits import resources
from tests.kits.disk.store_process import StoreProcess

ENDS_S_MAX = 30.0


class Process(StoreProcess):
    """A log store or a node."""

    def __init__(
        self,
        name: str,
        number: int,
        folder: Path,
        command: tuple[str, ...],
        address: str,
        begun: Callable[[str, int], None],
    ) -> None:
        super().__init__(number, folder / name, address)
        self.name = name
        self._command = command
        self.folder.parent.mkdir(exist_ok=True)
        self.ready_file = folder / name / "ready"
        self._begun = begun

    def begin(self) -> None:
        """Start it, without waiting for it."""
        self.ready_file.unlink(missing_ok=True)
        self.launch((*self._command, f"--ready-file={self.ready_file}"))
        resources.lasts(self.pid)
        self._begun(self.name, self.pid)

    def wait_ready(self) -> None:
        began = time.monotonic()
        while not self.ready_file.exists():
            self.check_starts(began)
            time.sleep(0.02)

    def start(self) -> None:
        self.begin()
        self.wait_ready()

    def kill_now(self) -> None:
        """With SIGKILL."""
        self.signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        """As a supervisor does; answers the exit status."""
        self.signal(signal.SIGTERM)
        return self._wait()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def _wait(self) -> int:
        assert self._process is not None
        status = self._process.wait(timeout=ENDS_S_MAX)
        resources.ended(self.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return status

    @property
    def id(self) -> NodeId:
        """Of a node that has been ready."""
        return NodeId(self.ready_file.read_text().split()[3])
