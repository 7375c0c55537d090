"""Durable storage on one disk: the segment log and the key-value engine."""
