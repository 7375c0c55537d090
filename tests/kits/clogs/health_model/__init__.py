"""Health of servers without I/O: seeded failures, delays and reloads, and an oracle beside it."""

from tests.kits.clogs.health_model.world import Report, run

__all__ = ["Report", "run"]
