"""A cluster of stores under HAKeeper without I/O: seeded faults, and checkers of what it promises."""

from tests.simulation.hakeeper_model.world import Report, run

__all__ = ["Report", "run"]
