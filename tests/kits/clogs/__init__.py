"""What tests of clogs share: storage in memory, receivers on it, sources of configurations."""
