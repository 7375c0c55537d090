"""LogHub's native client: producers and readers of a logstore, with or without an event loop."""
