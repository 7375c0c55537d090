"""The rules of ledgers without I/O: lives of ledgers by seed, messages in any order, checked."""

from tests.kits.dlog.ledger_model.world import Report, run

__all__ = ["Report", "run"]
