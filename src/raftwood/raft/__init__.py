"""Replicated logs: raft groups. Start with `core`, the protocol as a state machine without I/O."""
