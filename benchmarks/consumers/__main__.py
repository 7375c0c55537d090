"""Consumer groups by leases, in SQLite and PostgreSQL, against Kafka's: moves, failover, rates.

    python -m benchmarks.consumers [--systems sqlite,kafka] [--quick] [--format json]

Ten members are processes of their own; nine join one and leave again, round after round, then some
are killed. The rates are those of one member on a cluster of three nodes.
"""

from benchmarks.consumers.compare import QUICK, SYSTEMS, Pace, compare
from benchmarks.consumers.report import tables
from benchmarks.harness.command import run_command

if __name__ == "__main__":
    run_command(__doc__ or "", SYSTEMS, compare, tables, pace=Pace(), quick=QUICK)
