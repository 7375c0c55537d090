"""The status says how many lines are held, so that none is left uncounted at any time."""

import asyncio
from contextlib import suppress

from raftwood.base.compression import Codec
from raftwood.base.environment import Environment
from raftwood.base.errors import ShuttingDown
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.clogs.client.status import ShipperStatus
from raftwood.clogs.frames import LineBatch
from raftwood.clogs.lines import encode_lines
from tests.kits.clogs.ring import ACCESS, Ring, StaticSource, settings_of
from tests.unit.clogs.client.test_shipper import given, scene


def batch(sequence: int) -> LineBatch:
    """Three lines that somebody else keeps."""
    raw = encode_lines(given("b.log", 3 * sequence, 3 * sequence + 3), time_ns=1)
    return LineBatch(
        name="b.log",
        producer=b"p" * 16,
        sequence=sequence,
        count=3,
        raw_bytes=len(raw),
        codec=Codec.NONE,
        body=raw,
    )


def figures(status: ShipperStatus) -> tuple[int, int, int, int]:
    counters = status.counters
    return counters.taken, counters.acked, counters.dropped, status.held_lines


def test_lines_are_held_until_they_are_stored_whoever_keeps_them() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        source = StaticSource(ring.configuration())
        await ring.stop("log-0")
        shipper = await AsyncShipper.start(environment, settings_of(), ACCESS, source)
        shipper.send("a.log", given("a.log", 0, 5))
        delivering = asyncio.create_task(shipper.deliver(batch(1)))
        await asyncio.sleep(0)
        early = shipper.status()
        assert figures(early) == (8, 0, 0, 8)
        await ring.start("log-0")
        await delivering
        await shipper.flush()
        assert figures(shipper.status()) == (8, 8, 0, 0)
        assert figures(early) == (8, 0, 0, 8), "a status is of one moment"
        assert sum(each.acked for each in early.counters.servers.values()) == 0
        # At the end what nobody keeps is dropped, and the rest is held by who keeps it.
        await ring.stop("log-0")
        shipper.send("a.log", given("a.log", 5, 7))
        delivering = asyncio.create_task(shipper.deliver(batch(2)))
        await asyncio.sleep(0)
        await shipper.close(wait_ms=0)
        with suppress(ShuttingDown):
            await delivering
        assert figures(shipper.status()) == (13, 8, 2, 3)

    scene(body, servers=1)
