"""Raft on three nodes against etcd and dragonboat: appends, a leader's death, many groups.

    python -m benchmarks.raft_cluster [--systems etcd,dragonboat] [--quick] [--format json]

Each measurement has a fresh cluster of three processes on loopback and a load in a process of its
own. All systems run with fsync, without TLS, with heartbeats each 100 ms and elections after 1 s.
"""

import argparse
import pathlib

import msgspec
import rich.console

from benchmarks.peers.programs import CACHE
from benchmarks.raft_cluster.compare import QUICK, SYSTEMS, Pace, compare
from benchmarks.raft_cluster.report import statements, tables


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="names, with commas between")
    parser.add_argument("--quick", action="store_true", help="short, to see that it works")
    parser.add_argument("--rounds", type=int, default=1, help="measurements per system and case")
    parser.add_argument("--folder", type=pathlib.Path, default=CACHE / "data", help="on a disk")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    options = parser.parse_args()
    names = tuple(options.systems.split(","))
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        parser.error(f"no system {unknown[0]!r}: there are {', '.join(SYSTEMS)}")
    pace = msgspec.structs.replace(QUICK if options.quick else Pace(), rounds=options.rounds)
    progress = rich.console.Console(stderr=True)
    results = compare(names, pace, folder=options.folder, progress=progress.print)
    if options.format == "json":
        print(msgspec.json.format(msgspec.json.encode(results)).decode())
        return
    console = rich.console.Console()
    for table in tables(results):
        console.print(table)
    for line in statements(results):
        console.print(line, markup=False)


if __name__ == "__main__":
    main()
