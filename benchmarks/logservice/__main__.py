"""Logservice on three nodes against etcd and Kafka: appends, batches, shards, a leader's death.

    python -m benchmarks.logservice [--systems etcd,kafka] [--quick] [--format json]

In each round a system has a fresh cluster of three processes on loopback, gets warm, and goes
through all cases with a load in a process of its own; then it is the next system's turn.
"""

from benchmarks.harness.command import run_command
from benchmarks.logservice.compare import QUICK, SYSTEMS, Pace, compare
from benchmarks.logservice.report import tables

if __name__ == "__main__":
    run_command(__doc__ or "", SYSTEMS, compare, tables, pace=Pace(), quick=QUICK)
