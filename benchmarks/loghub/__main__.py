"""LogHub on three stores behind a gateway against Kafka: produce and consume.

    python -m benchmarks.loghub [--systems loghub,kafka] [--quick] [--format json]

In each round a system has a fresh cluster on loopback, gets warm, and goes through all cases with a
load in a process of its own; then it is the next system's turn.
"""

from benchmarks.harness.command import run_command
from benchmarks.loghub.compare import QUICK, SYSTEMS, Pace, compare
from benchmarks.loghub.report import tables

if __name__ == "__main__":
    run_command(__doc__ or "", SYSTEMS, compare, tables, pace=Pace(), quick=QUICK)
