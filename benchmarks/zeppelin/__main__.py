"""Zeppelin beside Redis and etcd, all loaded alike and in turns.

python -m benchmarks.zeppelin [--systems zeppelin,redis] [--quick] [--format json]
"""

from benchmarks.harness.command import run_command
from benchmarks.zeppelin.cases import SYSTEMS
from benchmarks.zeppelin.compare import QUICK, Pace, compare
from benchmarks.zeppelin.report import tables

if __name__ == "__main__":
    run_command(__doc__ or "", SYSTEMS, compare, tables, pace=Pace(), quick=QUICK)
