"""Raftwood: a distributed log platform. See ARCHITECTURE.md for the packages and their order."""

__version__ = "0.1.0"
