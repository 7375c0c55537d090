"""`raftwood standalone` as a process of its own, as the demo starts it, for sources and sinks."""

from pathlib import Path

from raftwood.server.parts import LogHubPart
from raftwood_demos.standalone_process import StandaloneProcess


def options_of(part: LogHubPart) -> dict[str, str]:
    """How to reach LogHub, as options of Spark."""
    return {
        "gateways": part.native,
        "accessKey": part.access_key,
        "accessSecret": part.access_secret,
    }


class Standalone(StandaloneProcess):
    """Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder))

    @property
    def access(self) -> dict[str, str]:
        return options_of(self.loghub)
