"""The streams that the loads use, and the key that may use them."""

import msgspec

PROJECT = "benchmark"
PRODUCED = "produced"
SIZES = (100, 1000)


def filled(size: int) -> str:
    """Holds records of one size, to be consumed again and again."""
    return f"filled-{size}"


STREAMS = (PRODUCED, *map(filled, SIZES))


class Key(msgspec.Struct, frozen=True):
    id: str
    secret: str
