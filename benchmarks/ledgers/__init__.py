"""Ledgers in BookKeeper through our client and through its own, on the same bookies."""
