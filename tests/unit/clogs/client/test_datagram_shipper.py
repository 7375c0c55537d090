"""Lines as datagrams: they come or not, and servers that do not answer are left out."""

import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration
from raftwood.clogs.client.datagram_shipper import LINES_BYTES_MAX, DatagramShipper
from raftwood.clogs.configuration import LogServer, RingConfiguration
from raftwood.clogs.receiver import DatagramListener
from tests.kits.clogs.ring import KEY, QUICK, Ring, StaticSource, versioned
from tests.kits.running import until
from tests.unit.clogs.client.test_shipper import NAMES, given, scene

SECRET = b"a secret of datagrams"


async def listening(ring: Ring, name: str, port: int = 0) -> tuple[DatagramListener, LogServer]:
    listener = DatagramListener(ring.receivers[name], secret=SECRET, key=KEY)
    return listener, LogServer("127.0.0.1", await listener.listen("127.0.0.1", port), name=name)


def test_lines_come_and_a_server_that_does_not_answer_is_left_out_until_it_does() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        first, one = await listening(ring, "log-0")
        second, two = await listening(ring, "log-1")
        source = StaticSource(versioned(RingConfiguration((one, two), ha=QUICK)))
        try:
            async with await DatagramShipper.start(environment, source, secret=SECRET) as shipper:
                assert shipper.send("early.log", [b"nobody is known yet"]) == 0
                await until(lambda: len(shipper.live) == 2)
                for name in NAMES:
                    assert shipper.send(name, given(name, 0, 50)) == 50
                stored = ring.storage.lines
                await until(lambda: all(stored(name) == given(name, 0, 50) for name in NAMES))
                await second.close()
                await until(lambda: shipper.live == ("log-0",))
                for name in NAMES:
                    shipper.send(name, given(name, 50, 60))
                await until(lambda: all(stored(name) == given(name, 0, 60) for name in NAMES))
                second, _ = await listening(ring, "log-1", two.port)
                await until(lambda: len(shipper.live) == 2)
                assert shipper.counters.sent == 60 * len(NAMES)
                assert shipper.counters.dropped == 1
        finally:
            await first.close()
            await second.close()

    scene(body)


def test_many_lines_go_in_several_datagrams_and_long_ones_are_cut() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        listener, server = await listening(ring, "log-0")
        source = StaticSource(versioned(RingConfiguration((server,), ha=QUICK)))
        lines = [bytes([65 + number % 26]) * 3000 for number in range(20)]
        try:
            async with await DatagramShipper.start(environment, source, secret=SECRET) as shipper:
                await until(lambda: bool(shipper.live))
                shipper.send("a.log", [*lines, b"z" * 100_000])
                wanted = [*lines, b"z" * LINES_BYTES_MAX]
                await until(lambda: ring.storage.lines("a.log") == wanted)
                assert shipper.counters.cut == 1
        finally:
            await listener.close()

    scene(body, servers=1)


def test_who_has_another_secret_stores_nothing_and_hears_nothing() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        listener, server = await listening(ring, "log-0")
        other, second = await listening(ring, "log-1")
        source = StaticSource(versioned(RingConfiguration((server, second), ha=QUICK)))
        try:
            async with await DatagramShipper.start(
                environment, source, secret=b"another secret, as long"
            ) as shipper:
                await until(lambda: bool(shipper.live))
                assert shipper.send("a.log", [b"line"]) == 1
                figures = ring.receivers["log-0"].figures, ring.receivers["log-1"].figures
                await until(lambda: sum(each.dropped_datagrams for each in figures) > 3)
                assert ring.storage.lines("a.log") == []
        finally:
            await listener.close()
            await other.close()

    scene(body)


def test_a_short_secret_is_refused() -> None:
    async def body(environment: Environment, ring: Ring) -> None:
        del ring
        with pytest.raises(InvalidConfiguration, match="can be guessed"):
            await DatagramShipper.start(environment, StaticSource(), secret=b"short")

    scene(body, servers=1)
