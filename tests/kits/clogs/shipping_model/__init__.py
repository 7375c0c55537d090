"""Shipping rules without I/O: seeded losses, delays, moves and rings, and an oracle beside them."""

from tests.kits.clogs.shipping_model.world import Report, run

__all__ = ["Report", "run"]
