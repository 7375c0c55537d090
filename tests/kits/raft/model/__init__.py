"""A network of raft nodes without I/O: seeded faults, and checkers of what raft promises."""

from tests.kits.raft.model.world import Report, run

__all__ = ["Report", "run"]
