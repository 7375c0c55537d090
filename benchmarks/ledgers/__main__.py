"""Ledgers in BookKeeper through our client and through its own Java client, on the same bookies.

    python -m benchmarks.ledgers [--systems raftwood] [--quick] [--format json]

Three bookies and a ZooKeeper server run all the time; the clients take turns, each in a process of
its own that goes through all cases.
"""

from benchmarks.harness.command import run_command
from benchmarks.ledgers.compare import QUICK, SYSTEMS, Pace, compare
from benchmarks.ledgers.report import tables

if __name__ == "__main__":
    run_command(__doc__ or "", SYSTEMS, compare, tables, pace=Pace(), quick=QUICK)
