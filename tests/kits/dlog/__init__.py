"""Ledgers for tests of what stands above them, and bookies in memory for the quorum client."""
