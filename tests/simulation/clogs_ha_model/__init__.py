"""Health of servers without I/O: seeded failures, delays and reloads, and an oracle beside it."""

from tests.simulation.clogs_ha_model.world import Report, Violation, run

__all__ = ["Report", "Violation", "run"]
