"""Consumer groups without I/O: seeded faults, and checkers of what is promised."""

from tests.simulation.consumer_group_model.world import Report, run

__all__ = ["Report", "run"]
