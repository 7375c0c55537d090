"""Virtual time, order, determinism, crashes and pauses of the simulated loop."""
