"""The quorum client in virtual time: one writer, several recoveries, readers, and bad bookies."""

from tests.kits.dlog.ledgers.world import Report, run

__all__ = ["Report", "run"]
