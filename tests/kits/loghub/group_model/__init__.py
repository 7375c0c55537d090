"""Consumer groups without I/O: seeded faults, and checkers of what is promised."""

from tests.kits.loghub.group_model.world import Report, run

__all__ = ["Report", "run"]
