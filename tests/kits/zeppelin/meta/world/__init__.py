"""Meta stores, nodes and writers in virtual time, with faults; without raft, network or disk."""
