"""A cluster under HAKeeper without I/O: seeded faults, and checkers of what is promised."""

from tests.kits.logservice.hakeeper_model.world import Report, run

__all__ = ["Report", "run"]
