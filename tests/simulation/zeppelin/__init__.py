"""Nodes of Zeppelin that replicate partitions in virtual time, under faults by seed."""

from tests.simulation.zeppelin.world import run

__all__ = ["run"]
