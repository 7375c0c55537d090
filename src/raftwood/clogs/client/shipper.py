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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Self

from raftwood.base.codecs import Codec
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    Overloaded,
    RaftwoodError,
    SequenceForgotten,
    ShuttingDown,
    StoreDamaged,
    TooLarge,
)
from raftwood.base.logs import get_logger
from raftwood.clogs.batches import LineBatch
from raftwood.clogs.client.backlog import Backlog
from raftwood.clogs.client.counters import Counters
from raftwood.clogs.client.deliveries import Delivery
from raftwood.clogs.client.entries import Done, Entry
from raftwood.clogs.client.links import Access
from raftwood.clogs.client.pending import Encoding, Fields, MaskLines
from raftwood.clogs.client.ring_follower import RingFollower
from raftwood.clogs.client.settings import ClogsClientSettings, WhenFull
from raftwood.clogs.client.shipping_rules import (
    Action,
    Load,
    Locate,
    Send,
    ShippingLimits,
    ShippingRules,
)
from raftwood.clogs.client.slots import Slots, open_slots
from raftwood.clogs.client.spool import Spool
from raftwood.clogs.client.status import ShipperStatus, shipper_status
from raftwood.clogs.errors import PlaceMoved
from raftwood.clogs.frames import Message, MessageType, decode_message, encode_message
from raftwood.clogs.model import checked_file_name
from raftwood.clogs.seams import ConfigurationSource
from raftwood.clogs.wire import STORE
from raftwood.net import Payload

_LIFE_BYTES: Final = 16
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
        slots: Slots | None,
        *,
        host: str,
        tags: Sequence[tuple[str, str]],
        mask: MaskLines | None,
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._slots = slots
        self._left: list[Spool] = [] if slots is None else list(slots.left)
        self._ring = RingFollower(environment, access, source, system=settings.system)
        self._links = self._ring.links
        self.counters = Counters()
        self._rules = ShippingRules(
            ShippingLimits(
                in_flight_max=settings.in_flight_max,
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
            None if slots is None else slots.own,
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
        self._loads: set[asyncio.Task[None]] = set()
        self._last_error = ""
        self._told: set[str] = set()
        """Servers that lines wait for: each is told of once, until it takes some again."""

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
            slots = await open_slots(
                environment, settings.spool_folder, bytes_max=settings.spool_bytes_max
            )
        shipper = cls(environment, settings, access, source, slots, host=host, tags=tags, mask=mask)
        for spool in [] if slots is None else [*slots.left, slots.own]:
            spool.on_failed = shipper._backlog.spool_failed
            for entry in spool.recover():
                shipper._backlog.resume(entry)
        shipper._ring.start()
        shipper._pump_soon()
        return shipper

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
        async with asyncio.timeout(self._settings.block_ms / 1000 or None):
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

    def take_record(self, name: str, line: bytes, *, time_ns: int, fields: Fields) -> None:
        """One line with further fields."""
        now = self._loop.time()
        self._backlog.take_record(name, line, time_ns=time_ns, fields=fields, now=now)
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
        return self._backlog.held_lines

    async def deliver(self, batch: LineBatch) -> None:
        """Returns once a batch that somebody else made, and keeps, is stored."""
        self._check_open()
        future: asyncio.Future[None] = self._loop.create_future()

        def done(error: RaftwoodError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.counters.taken += batch.count
        self._rules.add(Entry(batch, done, is_keepable=False))
        self._pump_soon()
        await future

    async def flush(self) -> None:
        """Wait until all that was taken is stored, or dropped."""
        self._backlog.form_all()
        self._pump_soon()
        entries = self._rules.entries()
        if entries:
            waiting = Delivery(len(entries))
            for entry in entries:
                entry.done = partial(_both, entry.done, waiting)
            await waiting

    async def sync(self) -> None:
        """Wait until all that was taken is stored, or in the spool."""
        if self._slots is None or not self._backlog.keep_all():
            await self.flush()
        else:
            self._pump_soon()
            await self._slots.own.sync()

    async def close(self, *, wait_ms: int | None = None) -> None:
        """Wait so long until all is stored; what is not then goes to the spool, if there is one.

        Lines that are neither stored nor in a spool then are dropped, and counted.
        """
        if self._is_closed:
            return
        wait_ms = self._settings.exit_ms if wait_ms is None else wait_ms
        if wait_ms:
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self.flush()
            except TimeoutError:
                _log.info("not all lines are stored at the end", held=self._backlog.held_bytes)
        self._is_closed = True
        self._room.set()
        if self._slots is not None:
            self._backlog.keep_all()
            await self._slots.own.sync()
        await self._ring.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._loads):
            task.cancel()
        if self._loads:
            await asyncio.wait(list(self._loads))
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
            spool_bytes=0 if self._slots is None else self._slots.own.held_bytes,
            files=self._rules.lane_count,
            in_flight=self._rules.in_flight,
            last_error=self._last_error,
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
            self._perform(action, now)
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

    def _perform(self, action: Action, now: float) -> None:
        match action:
            case Send():
                self._send(action, now)
            case Locate():
                self._locate(action)
            case Load():
                task = self._loop.create_task(self._load(action))
                self._loads.add(task)
                task.add_done_callback(self._loads.discard)

    def _send(self, action: Send, now: float) -> None:
        entry, batch = action.entry, action.entry.batch
        assert batch is not None
        counters = self.counters.server(action.server)
        if action.is_repeat:
            counters.retried += entry.count
        else:
            counters.sent += entry.count
        message = batch.message(system=self._settings.system, place=action.place)
        try:
            future = self._links.call(
                action.server, STORE, encode_message(message), self._settings.request_ms
            )
        except RaftwoodError as error:
            self._failed(action, error)
        else:
            future.add_done_callback(partial(self._stored, action))
        self._ring.sent(action.server, now)

    def _locate(self, action: Locate) -> None:
        message = Message(
            type=MessageType.LOCATE, system=self._settings.system, name=action.lane.name
        )
        try:
            future = self._links.call(
                action.server, STORE, encode_message(message), self._settings.request_ms
            )
        except RaftwoodError as error:
            self._failed(action, error)
        else:
            future.add_done_callback(partial(self._located, action))

    async def _load(self, action: Load) -> None:
        entry, spool = action.entry, action.entry.spool
        assert spool is not None
        try:
            batch = await spool.load(entry)
        except RaftwoodError as error:
            if entry.spool is None:  # it was dropped or acked meanwhile, and so is not there
                self._rules.loaded(action.lane, action.attempt)
            elif isinstance(error, StoreDamaged):
                _log.error("a batch in the spool is lost", file=entry.name, why=error.message)
                if self._rules.refused(action.lane, entry, action.attempt):
                    self._backlog.lost(entry, error)
                    self._backlog.form_next(entry.name)
            else:
                self._rules.failed(action.lane, action.attempt, now=self._loop.time())
        else:
            if entry.batch is None and entry.spool is not None:
                self._backlog.loaded(entry, batch)
            self._rules.loaded(action.lane, action.attempt)
        self._pump_soon()

    def _located(self, action: Locate, future: "asyncio.Future[Payload]") -> None:
        answer = self._answer(future)
        if isinstance(answer, Message):
            self._rules.located(action.lane, action.attempt, answer.place)
        elif answer is not None:
            self._failed(action, answer)
        self._pump_soon()

    def _stored(self, action: Send, future: "asyncio.Future[Payload]") -> None:
        answer = self._answer(future)
        if isinstance(answer, Message):
            self._acked(action, answer.place)
        elif isinstance(answer, PlaceMoved):
            self._rules.moved(action.lane, action.attempt, now=self._loop.time())
        elif isinstance(answer, SequenceForgotten):
            # Later ones of this producer are stored, and they were sent after this one was.
            self._acked(action, action.place)
        elif isinstance(answer, TooLarge):
            # Of all that can be said against a batch, this alone will be said by all servers, for
            # ever: what else is wrong somebody can put right, and the lines wait for that.
            if self._rules.refused(action.lane, action.entry, action.attempt):
                self._refuse(action.entry, answer)
        elif answer is not None:
            self._failed(action, answer)
        self._pump_soon()

    def _answer(self, future: "asyncio.Future[Payload]") -> Message | RaftwoodError | None:
        """What a receiver said; None at the end, when nobody wants to know any more."""
        if future.cancelled() or self._is_closed:
            return None
        error = future.exception()
        if isinstance(error, RaftwoodError):
            return error
        if error is not None:
            raise error
        try:
            message = decode_message(future.result())
        except RaftwoodError as damaged:
            # Whatever was stored is stored once: the batch is sent again.
            return Overloaded(damaged.message)
        return message if message.type is MessageType.ACK else Overloaded("no ack came")

    def _acked(self, action: Send, place: str) -> None:
        entry = action.entry
        if not self._rules.acked(action.lane, entry, place):
            return
        self.counters.acked += entry.count
        self.counters.server(action.server).acked += entry.count
        self._told.discard(action.server)
        spool = entry.spool
        entry.done(None)
        if spool is not None and spool.is_empty and spool in self._left:
            self._left.remove(spool)
            task = self._loop.create_task(spool.close())
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)
        self._backlog.form_next(entry.name)

    def _refuse(self, entry: Entry, error: RaftwoodError) -> None:
        self.counters.refused += entry.count
        _log.error("lines are refused for ever", file=entry.name, why=error.message)
        entry.done(error)
        self._backlog.form_next(entry.name)

    def _failed(self, action: Send | Locate, error: RaftwoodError) -> None:
        self._last_error = error.message
        if action.server not in self._told:
            self._told.add(action.server)
            _log.warning("lines wait", server=action.server, why=error.message)
        self._rules.failed(action.lane, action.attempt, now=self._loop.time())
        if isinstance(action, Send):
            self._backlog.failed(action.entry)
        self._pump_soon()


def _both(first: Done, waiting: Delivery, error: RaftwoodError | None) -> None:
    first(error)
    waiting.settle(1, None)
