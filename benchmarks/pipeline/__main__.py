"""Spark's source and sink `loghub` against its own Kafka connector and Parquet files.

    python -m benchmarks.pipeline [--systems loghub,kafka] [--quick] [--format json]

In each round a system has a fresh cluster on loopback, filled with the same records, and a fresh
Spark that runs all queries; then it is the next system's turn. What counts is CPU: that of Spark,
of its Python workers and of all servers together.
"""

from benchmarks.harness.command import run_command
from benchmarks.pipeline.compare import QUICK, SYSTEMS, Pace, compare
from benchmarks.pipeline.report import tables

if __name__ == "__main__":
    run_command(__doc__ or "", SYSTEMS, compare, tables, pace=Pace(), quick=QUICK)
