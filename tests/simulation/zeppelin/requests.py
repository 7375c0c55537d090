"""What clients do to keys; the keys are few, so that they meet."""

import random

from raftwood.zeppelin.node.seams import PartitionStore, Write
from tests.simulation.zeppelin.node import Change
from tests.zeppelin_kit.image_store import Origin

KEYS = tuple(b"key%d" % number for number in range(8))
COUNTERS = (b"counter0", b"counter1")


def random_change(source: random.Random, origin: Origin) -> Change:
    kind = source.choices(
        ("set", "new", "expiring", "delete", "increment", "flush"), (20, 40, 20, 5, 14.5, 0.5)
    )[0]
    key = source.choice(KEYS)
    counter = source.choice(COUNTERS)
    ttl_ms = int(10 ** source.uniform(2, 5))
    data = b"%s/%d" % origin

    def change(store: PartitionStore, now_ms: int) -> tuple[tuple[Write, ...], bool]:
        match kind:
            case "new":
                # Nobody writes it ever again: where it is a ghost, it stays one.
                return (Write(data, data),), False
            case "set":
                return (Write(key, data),), False
            case "expiring":
                return (Write(key, data, now_ms + ttl_ms),), False
            case "delete":
                return (Write(key, None),), False
            case "increment":
                value = store.get(counter, now_ms=now_ms)
                count = 1 if value is None else int(value.data) + 1
                return (Write(counter, b"%d" % count), Write(key, data)), False
            case _:
                return (), True

    return change
