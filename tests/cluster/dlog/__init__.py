"""Ledgers on real processes: bookies that are killed, stopped and wiped."""
