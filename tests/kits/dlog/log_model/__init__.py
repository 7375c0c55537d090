"""Writers' rules without I/O: many processes, one record, and events in any order."""

from tests.kits.dlog.log_model.world import Report, run

__all__ = ["Report", "run"]
