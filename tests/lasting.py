"""Processes that outlive a test: those of clusters that several tests share, and may restart."""

_alive: set[int] = set()


def lasts(pid: int) -> None:
    _alive.add(pid)


def ended(pid: int) -> None:
    _alive.discard(pid)


def processes() -> frozenset[int]:
    """All that run now."""
    return frozenset(_alive)
