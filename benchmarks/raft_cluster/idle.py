"""Groups that have nothing to do: their cost, and how soon they have leaders after a restart."""

import pathlib
import time

import msgspec

from benchmarks.harness.cluster import Cluster
from benchmarks.harness.system import System

SETTLE_S = 3.0
FEW_GROUPS = 2
"""What memory is compared with; more than one, since a system may treat a single one apart."""


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Of the worst of the three nodes."""

    cpu_percent: float
    kilobytes_per_group: float
    restart_to_all_leaders_s: float


def measure_idle(system: System, folder: pathlib.Path, groups: int, seconds: float) -> Idle:
    with Cluster(system, folder=folder, groups=FEW_GROUPS) as cluster:
        time.sleep(SETTLE_S)
        few = cluster.resident_bytes()
    with Cluster(system, folder=folder, groups=groups) as cluster:
        time.sleep(SETTLE_S)
        before, began = cluster.cpu_s(), time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        spent = [b - a for a, b in zip(before, cluster.cpu_s(), strict=True)]
        many = cluster.resident_bytes()
        cluster.stop()
        restart_s = cluster.start()
    grown = max(b - a for a, b in zip(few, many, strict=True))
    return Idle(
        cpu_percent=max(spent) / elapsed * 100,
        kilobytes_per_group=grown / (groups - FEW_GROUPS) / 1000,
        restart_to_all_leaders_s=restart_s,
    )
