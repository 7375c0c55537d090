"""`AsyncShipper`: takes lines by file name, and has them stored by the servers of a ring.

    async with await AsyncShipper.start(environment, settings, access, source) as shipper:
        delivery = shipper.send("app.log", [b"one line", b"another"])
        await delivery                      # stored, once and in order
        await shipper.flush()

It drives the rules and holds none: `shipping_rules` says which batch goes where and when,
`ring_follower` knows the servers, `backlog` what is held in memory and on disk. `deliver` is for
who keeps lines until they are stored, as `tail` does: it bypasses the backlog.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Self

from raftwood.base.codecs import Codec
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DiskFull,
    Overloaded,
    RaftwoodError,
    ShuttingDown,
)
from raftwood.base.futures import fail
from raftwood.base.logs import get_logger
from raftwood.clogs.batches import LineBatch
from raftwood.clogs.client.backlog import Backlog
from raftwood.clogs.client.counters import Counters
from raftwood.clogs.client.deliveries import Delivery
from raftwood.clogs.client.entries import Done, Entry
from raftwood.clogs.client.links import Access
from raftwood.clogs.client.pending import Encoding, Fields, MaskLines
from raftwood.clogs.client.ring_follower import RingFollower
from raftwood.clogs.client.sending import Sending
from raftwood.clogs.client.settings import ClogsClientSettings, WhenFull
from raftwood.clogs.client.shipping_rules import (
    ShippingLimits,
    ShippingRules,
)
from raftwood.clogs.client.slots import Slots, open_slots
from raftwood.clogs.client.spool import Spool
from raftwood.clogs.client.status import ShipperStatus, shipper_status
from raftwood.clogs.model import checked_file_name
from raftwood.clogs.seams import ConfigurationSource

_LIFE_BYTES: Final = 16
_SPOOL_RETRY_S: Final = 5.0
_CODECS: Final = {"none": Codec.NONE, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}

_log = get_logger("clogs")


class AsyncShipper:
    """Use `start`, and `close` when done."""

    def __init__(
        self,
        environment: Environment,
        settings: ClogsClientSettings,
        access: Access,
        source: ConfigurationSource,
        *,
        host: str,
        tags: Sequence[tuple[str, str]],
        mask: MaskLines | None,
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._slots: Slots | None = None
        self._opening: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._left: list[Spool] = []
        self._ring = RingFollower(environment, access, source, system=settings.system)
        self._links = self._ring.links
        self.counters = Counters()
        self._rules = ShippingRules(
            ShippingLimits(
                in_flight_max=settings.in_flight_max,
                file_in_flight_max=settings.file_in_flight_max,
                retry_first_s=settings.retry_first_ms / 1000,
                retry_longest_s=settings.retry_longest_ms / 1000,
            ),
            self._ring.route,
        )
        encoding = Encoding(
            life=environment.random.randbytes(_LIFE_BYTES),
            codec=_CODECS[settings.compression.value],
            source=settings.source or host,
            tags=tuple(tags),
            mask=mask,
        )
        self._backlog = Backlog(
            settings,
            encoding,
            self._rules,
            self.counters,
            self._ring.route,
        )
        self._room: asyncio.Event = asyncio.Event()
        self._backlog.on_room = self._tell_room
        self.on_room: Callable[[], None] | None = None
        """Called when there is more room than there was."""
        self._ring.on_servers = self._rules.servers_changed
        self._ring.on_event = self._pump_soon
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._is_pumping = False
        self._is_closed = False
        self._delivering = 0
        """Lines that somebody else keeps until they are stored."""
        self._sending = Sending(
            settings,
            self._rules,
            self._ring,
            self._backlog,
            self.counters,
            left=self._left,
            on_event=self._pump_soon,
        )

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: ClogsClientSettings,
        access: Access,
        source: ConfigurationSource,
        *,
        host: str = "",
        tags: Sequence[tuple[str, str]] = (),
        mask: MaskLines | None = None,
    ) -> "AsyncShipper":
        """Takes lines at once, and holds them until a configuration has come. The source is the
        shipper's from now on.
        """
        slots = None
        if settings.spool_folder:
            slots = await _slots_of(environment, settings)
        shipper = cls(environment, settings, access, source, host=host, tags=tags, mask=mask)
        if slots is not None:
            shipper._use(slots)
        elif settings.spool_folder:
            shipper._opening = shipper._loop.create_task(shipper._open_later(), name="clogs spool")
        shipper._ring.start()
        shipper._pump_soon()
        return shipper

    def _use(self, slots: Slots) -> None:
        self._slots = slots
        self._left += slots.left
        self._backlog.use(slots.own)
        for spool in [*slots.left, slots.own]:
            spool.on_failed = self._backlog.spool_failed
            for entry in spool.recover():
                self._backlog.resume(entry)

    async def _open_later(self) -> None:
        """There was no room for a spool; there may be some later."""
        while self._slots is None:
            await asyncio.sleep(_SPOOL_RETRY_S)
            try:
                slots = await _slots_of(self._environment, self._settings)
                if slots is not None:
                    self._use(slots)
            except RaftwoodError as error:
                _log.warning("there is no spool yet", why=error.message)
        self._pump_soon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(wait_ms=self._settings.exit_ms if kind is None else 0)

    # Lines come

    def send(self, name: str, lines: Sequence[bytes], *, time_ns: int | None = None) -> Delivery:
        """Take lines of a file, in order. With `when_full = block`, `Overloaded` where there is no
        room: `put` waits for it.
        """
        self._check_open()
        if self._settings.when_full is WhenFull.BLOCK and not self._backlog.has_room():
            raise Overloaded(
                f"{self._backlog.held_bytes} bytes of lines are not stored yet: send more slowly, "
                "or raise clogs_client.memory_bytes_max"
            )
        delivery = Delivery(len(lines))
        if lines:
            self.take(checked_file_name(name), lines, time_ns=time_ns, delivery=delivery)
        return delivery

    async def put(
        self, name: str, lines: Sequence[bytes], *, time_ns: int | None = None
    ) -> Delivery:
        """As `send`, but waits for room, for up to `block_ms`."""
        # `send` says why, where the time is over.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.block_ms / 1000):
                while self._settings.when_full is WhenFull.BLOCK and not self._backlog.has_room():
                    self._room.clear()
                    await self._room.wait()
                    self._check_open()
        return self.send(name, lines, time_ns=time_ns)

    def take(
        self,
        name: str,
        lines: Sequence[bytes],
        *,
        time_ns: int | None = None,
        delivery: Delivery | None = None,
    ) -> None:
        """As `send`, of a name that was checked, whatever there is room for."""
        if time_ns is None:
            time_ns = self._environment.clock.wall_ns()
        now = self._loop.time()
        self._backlog.take(name, lines, time_ns=time_ns, now=now, delivery=delivery)
        self._pump_soon()

    def take_records(
        self,
        name: str,
        lines: Sequence[bytes],
        *,
        times_ns: Sequence[int],
        fields: Sequence[Fields],
    ) -> None:
        """As `take`, of lines with a time and further fields each."""
        now = self._loop.time()
        self._backlog.take_records(name, lines, times_ns=times_ns, fields=fields, now=now)
        self._pump_soon()

    @property
    def has_room(self) -> bool:
        return self._backlog.has_room()

    @property
    def held_bytes(self) -> int:
        """Of memory."""
        return self._backlog.held_bytes

    @property
    def held_lines(self) -> int:
        """Taken by this life or resumed, and not acked, dropped or refused yet."""
        return self._backlog.held_lines + self._delivering

    async def deliver(self, batch: LineBatch) -> None:
        """Returns once a batch that somebody else made, and keeps, is stored."""
        self._check_open()
        future: asyncio.Future[None] = self._loop.create_future()

        def done(error: RaftwoodError | None) -> None:
            if not isinstance(error, ShuttingDown):  # then whoever keeps them has them still
                self._delivering -= batch.count
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                fail(future, error)

        self.counters.taken += batch.count
        self._delivering += batch.count
        self._rules.add(Entry(batch, done, is_keepable=False))
        self._pump_soon()
        await future

    async def flush(self) -> None:
        """Wait until all that was taken is stored, or dropped."""
        self._backlog.form_all()
        self._pump_soon()
        entries = self._rules.entries()
        waiting = Delivery(len(entries))
        for entry in entries:
            if entry.flushes is None:
                entry.flushes = []
                entry.done = partial(_both, entry.done, entry.flushes)
            entry.flushes.append(waiting)
        try:
            await waiting
        finally:
            for entry in entries:
                if not waiting.is_done and entry.flushes is not None:
                    entry.flushes.remove(waiting)

    async def sync(self) -> None:
        """Wait until all that was taken is stored, or in the spool."""
        while self._slots is not None:
            own = self._slots.own
            was_failed = own.is_failed
            is_whole = await self._keep_all(own)
            if own.is_failed == was_failed:
                if is_whole:
                    return
                break
        await self.flush()

    async def _keep_all(self, own: Spool) -> bool:
        """Whether all is in the spool: in pieces, for only so much may wait for a disk at once."""
        while True:
            kept = self._backlog.kept_batches
            is_whole = self._backlog.keep_all()
            self._pump_soon()
            await own.sync()
            if is_whole or self._backlog.kept_batches == kept:
                return is_whole

    async def close(self, *, wait_ms: int | None = None) -> None:
        """Wait so long until all is stored; what is not then goes to the spool, if there is one.

        Lines that are neither stored nor in a spool then are dropped, and counted.
        """
        if self._ending is None:
            wait_ms = self._settings.exit_ms if wait_ms is None else wait_ms
            self._ending = self._loop.create_task(self._end(wait_ms), name="clogs end")
        await asyncio.shield(self._ending)

    async def _end(self, wait_ms: int) -> None:
        if wait_ms:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self.flush()
            except TimeoutError:
                _log.info("not all lines are stored at the end", held=self._backlog.held_bytes)
        self._is_closed = True
        self._room.set()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._slots is not None:
            await self._keep_all(self._slots.own)
        await self._ring.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._sending.close()
        self._give_up()
        if self._slots is not None:
            for spool in [*self._left, self._slots.own]:
                await spool.close()

    def _give_up(self) -> None:
        if dropped := self._backlog.give_up():
            _log.warning("lines were dropped at the end", lines=dropped)

    def status(self) -> ShipperStatus:
        """Figures for people."""
        return shipper_status(
            self._ring.configuration,
            self._ring.health,
            self._links,
            self.counters,
            now=self._loop.time(),
            held_bytes=self._backlog.held_bytes,
            held_lines=self.held_lines,
            spool_bytes=0 if self._slots is None else self._slots.own.held_bytes,
            files=self._rules.lane_count,
            in_flight=self._rules.in_flight,
            last_error=self._sending.last_error,
        )

    def count_dropped(self, lines: int) -> None:
        """Lines that were dropped before they came here."""
        self.counters.taken += lines
        self.counters.dropped += lines
        self.counters.server(None).dropped += lines

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call something on the shipper's loop."""
        self._loop.call_later(delay_s, callback)

    def _tell_room(self) -> None:
        self._room.set()
        if self.on_room is not None:
            self.on_room()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ShuttingDown("the shipper is closed: make another one")

    # Batches go

    def _pump_soon(self) -> None:
        if not self._is_pumping and not self._is_closed:
            self._is_pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pumping = False
        if self._is_closed:
            return
        now = self._loop.time()
        self._ring.tick(now)
        forms_at = self._backlog.form_due(now)
        for action in self._rules.actions(now):
            self._sending.perform(action, now)
        self._wake_at(min(forms_at, self._rules.due, self._ring.due))

    def _wake_at(self, due: float) -> None:
        if self._timer is not None:
            # Not `timer.when()`: where it is due at once, uvloop's has none.
            if self._timer_due == due:
                return
            self._timer.cancel()
            self._timer = None
        if due != float("inf"):
            self._timer, self._timer_due = self._loop.call_at(due, self._on_timer), due

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()


def _both(first: Done, flushes: list[Delivery], error: RaftwoodError | None) -> None:
    first(error)
    for each in list(flushes):
        each.settle(1, None)


async def _slots_of(environment: Environment, settings: ClogsClientSettings) -> Slots | None:
    """None where the disk has no room for a spool."""
    try:
        return await open_slots(
            environment, settings.spool_folder, bytes_max=settings.spool_bytes_max
        )
    except DiskFull as error:
        _log.warning("there is no room for a spool for now", reason=error.message)
        return None
