"""One web server of the demo, a process of its own: it makes log lines and ships them with clogs.

    python -m raftwood_demos.web_server

A line of JSON on standard input says who it is (`WebServerPlan`), each further one what to do next
(`Order`). On standard output it tells how it is, all the time, a `WebServerReport` a line. It ends
when standard input does.
"""

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from raftwood.base.environment import Environment, SystemClock
from raftwood.base.logs import set_up_logs
from raftwood.base.settings import LoggingSettings, Secret
from raftwood.clogs.client.settings import ClogsClientSettings, WhenFull
from raftwood.clogs.client.shipper import AsyncShipper, open_shipper
from raftwood.clogs.client.status import Counters
from raftwood.disk.real_environment import real_environment
from raftwood.server.event_loop import run
from raftwood_demos.web_logs import file_name, server_name, web_logs


class WebServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines it makes, and where they go."""

    number: int
    seed: int
    lines: int
    """In all."""
    lines_per_minute: int
    """By the times that stand in them."""
    ring: str
    receivers: tuple[str, ...]
    access_key: str
    access_secret: str


class Ship(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make and ship the next lines, within so many seconds at the soonest."""

    lines: int
    seconds: float
    held_back: int = 0
    """The last ones of them, which wait for `GoOn`."""


class GoOn(msgspec.Struct, frozen=True, tag=True):
    """Ship what was held back as well."""


Order = Ship | GoOn


class Given(msgspec.Struct, frozen=True, array_like=True):
    """Lines that were given to the shipper at once; times are of the clock of all processes."""

    file: str
    lines: int
    given_ns: int
    acked_ns: int


class WebServerReport(msgspec.Struct, frozen=True, kw_only=True):
    """How it is."""

    version: int
    """Of the ring's configuration; 0 before it has come from a receiver."""
    isolated: tuple[str, ...]
    counters: Counters
    reached: dict[str, int] = {}
    """By file: when the newest of its lines that are acked was given."""
    shipped: int = 0
    """Orders of which every line is acked."""
    given: tuple[Given, ...] = ()
    """Told at the end of an order."""


_TURN_S: Final = 0.02
_REPORT_S: Final = 0.05
_TURN_LINES_MAX: Final = 500
_MEMORY_BYTES_MAX: Final = 4 << 20
"""Lines are not made much faster than they are stored."""


class _WebServer:
    def __init__(self, plan: WebServerPlan, shipper: AsyncShipper) -> None:
        self._plan = plan
        self._shipper = shipper
        self._lines = web_logs(
            plan.lines,
            seed=plan.seed,
            server=plan.number,
            lines_per_minute=plan.lines_per_minute,
        )
        self._given: list[Given] = []
        self._reached: dict[str, int] = {}
        self._shipped = 0
        self.may_go_on = asyncio.Event()

    async def ship(self, order: Ship) -> None:
        self.may_go_on.clear()
        self._given.clear()
        at_once = order.lines - order.held_back
        await self._pace(at_once, order.seconds * at_once / order.lines)
        if order.held_back:
            await self.may_go_on.wait()
            await self._pace(order.held_back, order.seconds * order.held_back / order.lines)
        await self._shipper.flush()
        self._shipped += 1
        self.tell(self._given)

    async def _pace(self, count: int, seconds: float) -> None:
        """Not sooner than in so many seconds, evenly."""
        loop = asyncio.get_running_loop()
        began, made = loop.time(), 0
        while made < count:
            due = int(count * min(1.0, (loop.time() - began) / seconds))
            # However late it is, the shipper gets its turns.
            next_ones = min(due - made, _TURN_LINES_MAX)
            await self._make(next_ones)
            made += next_ones
            await asyncio.sleep(0 if made < due else _TURN_S)

    async def _make(self, count: int) -> None:
        by_file: defaultdict[str, list[bytes]] = defaultdict(list)
        for line in islice(self._lines, count):
            by_file[file_name(self._plan.number, line)].append(line.encode())
        for name, lines in by_file.items():
            now_ns = time.monotonic_ns()
            delivery = await self._shipper.put(name, lines)
            delivery.when_done(partial(self._acked, name, len(lines), now_ns))

    def _acked(self, name: str, lines: int, given_ns: int) -> None:
        self._given.append(Given(name, lines, given_ns, time.monotonic_ns()))
        self._reached[name] = given_ns

    async def tell_always(self) -> None:
        while True:
            self.tell()
            await asyncio.sleep(_REPORT_S)

    def tell(self, given: Sequence[Given] = ()) -> None:
        status = self._shipper.status()
        report = WebServerReport(
            version=status.version or 0,
            isolated=tuple(each.server for each in status.servers if each.is_isolated),
            counters=status.counters,
            reached=self._reached,
            shipped=self._shipped,
            given=tuple(given),
        )
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


async def main(environment: Environment) -> None:
    """Until standard input ends."""
    reader = await _standard_input()
    plan = msgspec.json.decode(await reader.readline(), type=WebServerPlan)
    settings = ClogsClientSettings(
        ring=plan.ring,
        servers=plan.receivers,
        access_key=plan.access_key,
        access_secret=Secret(plan.access_secret),
        source=server_name(plan.number),
        when_full=WhenFull.BLOCK,
        memory_bytes_max=_MEMORY_BYTES_MAX,
    )
    async with await open_shipper(environment, settings) as shipper, asyncio.TaskGroup() as tasks:
        server = _WebServer(plan, shipper)
        telling = tasks.create_task(server.tell_always())
        shipping: asyncio.Task[None] | None = None
        while line := await reader.readline():
            order = msgspec.json.decode(line, type=Order)
            if isinstance(order, GoOn):
                server.may_go_on.set()
            else:
                shipping = tasks.create_task(server.ship(order))
        for task in (telling, shipping):
            if task is not None:
                task.cancel()


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


if __name__ == "__main__":
    set_up_logs(LoggingSettings(), clock=SystemClock())
    with real_environment() as real:
        run(main(real))
