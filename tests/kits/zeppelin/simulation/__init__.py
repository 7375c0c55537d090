"""Whole nodes of Zeppelin and their clients in virtual time, under faults by seed."""

from tests.kits.zeppelin.simulation.world import run

__all__ = ["run"]
