"""The rules of a log without I/O: who may write, when ledgers change, and what may be freed."""
