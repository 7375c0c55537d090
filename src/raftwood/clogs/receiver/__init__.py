"""The servers' side: a listener that stores what shippers send."""
