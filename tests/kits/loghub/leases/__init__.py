"""Workers that share shards by leases, in virtual time, with everything that can go wrong."""

from tests.kits.loghub.leases.runs import Report, run

__all__ = ["Report", "run"]
