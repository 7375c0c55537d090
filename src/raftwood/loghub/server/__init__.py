"""A gateway's inside: metadata, streams, consumer groups, and the protocols that reach them."""
