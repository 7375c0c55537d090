"""What `raftwood demo` shows: real processes on this machine, put under fire, with a report."""
