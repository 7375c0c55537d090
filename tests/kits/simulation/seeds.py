"""Which seeds are tried first."""

from collections.abc import Iterator


def promising(first: int, count: int) -> Iterator[int]:
    """All of so many, beginning with one that showed something before."""
    yield first
    for seed in range(count):
        if seed != first:
            yield seed
