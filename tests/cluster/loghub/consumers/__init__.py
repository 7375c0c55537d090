"""Workers of a group as real processes."""
