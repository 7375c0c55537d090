"""Zeppelin as real processes, with real faults."""
