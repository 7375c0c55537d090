"""`raftwood standalone` as a process of a demo; it ends when the demo does, however that ended."""

from collections.abc import Sequence
from typing import Self

import msgspec

from raftwood.loghub.client import LogHubClient
from raftwood.server.child_processes import free_ports_in_a_row
from raftwood.server.parts import LogHubPart, Parts
from raftwood.server.standalone import PORTS
from raftwood_demos.processes import DemoProcess, end_all


class StandaloneProcess:
    """Use it as a context manager, or `start` and `close`; `parts` say how to reach it."""

    def __init__(self, folder: str, flags: Sequence[str] = ()) -> None:
        """`flags` are further ones of `raftwood standalone`."""
        self._folder = folder
        self._flags = flags
        self._process: DemoProcess | None = None
        self.parts: Parts
        self.exit_status: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Returns when it is ready."""
        arguments = (
            "--data",
            f"{self._folder}/data",
            "--port-base",
            str(free_ports_in_a_row(PORTS)),
        )
        self._process = DemoProcess(
            self._folder,
            "standalone",
            ("standalone", *arguments, *self._flags),
            has_ready_file=True,
        )
        try:
            self._process.wait_ready()
            with open(self._process.ready_file, "rb") as file:
                self.parts = msgspec.json.decode(file.read(), type=Parts)
        except BaseException:
            self.close(is_orderly=False)
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(is_orderly=kind is None)

    @property
    def loghub(self) -> LogHubPart:
        return self.parts.loghub

    def close(self, *, is_orderly: bool = True) -> None:
        assert self._process is not None
        self.exit_status = end_all([self._process], is_orderly=is_orderly)[0]

    def client(self) -> LogHubClient:
        part = self.loghub
        return LogHubClient.connect(
            part.native, access_key=part.access_key, access_secret=part.access_secret
        )
