"""A system of processes that only sleep, whose loads print what they are told to."""

import json
import os
import sys
from collections.abc import Mapping

from benchmarks.harness.measure import Figures
from benchmarks.harness.system import NODES, Layout, Load

WARM = {"event": "warm"}
RESULT = {
    "event": "result",
    "count": 200,
    "elapsed_s": 2.0,
    "p50_ms": 1.0,
    "p99_ms": 3.0,
    "client_cpu_s": 0.01,
}


class Sleepers:
    """Node 1 leads; a load prints the given lines."""

    name = "sleepers"
    groups_max = 1
    has_batches = False
    warm_up_s = 0.0

    def __init__(
        self, *lines: Mapping[str, object], node: str = "import time; time.sleep(60)"
    ) -> None:
        self.lines, self.node = lines, node
        self.loads: list[Load] = []

    def prepare(self) -> str:
        return "processes that sleep"

    def node_command(self, layout: Layout, node: int) -> list[str]:
        assert os.path.isdir(layout.node_folder(node))
        return [sys.executable, "-c", self.node]

    def leaders(self, layout: Layout) -> list[int | None]:
        return [1] * layout.groups

    def load_command(self, layout: Layout, load: Load, leader: int) -> list[str]:
        assert (leader, len(layout.client_ports)) == (1, NODES)
        self.loads.append(load)
        text = "\n".join(json.dumps(line) for line in self.lines)
        return [sys.executable, "-c", f"print({text!r})"]


def figures_of(rate: float, p99_ms: float = 1.0) -> Figures:
    return Figures(
        appends_per_second=rate,
        megabytes_per_second=rate,
        p50_ms=1.0,
        p99_ms=p99_ms,
        leader_cpu_us=1.0,
        follower_cpu_us=1.0,
        client_cpu_us=1.0,
    )
