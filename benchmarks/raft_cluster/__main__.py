"""Raft on three nodes against etcd and dragonboat: appends, a leader's death, many groups.

    python -m benchmarks.raft_cluster [--systems etcd,dragonboat] [--quick] [--format json]

Each measurement has a fresh cluster of three processes on loopback and a load in a process of its
own. All systems run with fsync, without TLS, with heartbeats each 100 ms and elections after 1 s.
"""

from benchmarks.harness.command import run_command
from benchmarks.raft_cluster.compare import QUICK, SYSTEMS, Pace, compare
from benchmarks.raft_cluster.report import tables

if __name__ == "__main__":
    run_command(__doc__ or "", SYSTEMS, compare, tables, pace=Pace(), quick=QUICK)
