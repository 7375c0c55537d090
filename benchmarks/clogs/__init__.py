"""clogs beside others: look-ups in the ring, the handler, and `raftwood ship`."""
