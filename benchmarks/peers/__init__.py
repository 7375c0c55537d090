"""The systems of others that ours are compared with, and the programs that load them."""
