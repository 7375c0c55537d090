"""Runs raft scripts: commands, their input, and what they must print."""
