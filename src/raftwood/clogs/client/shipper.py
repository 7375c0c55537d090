"""`AsyncShipper`: accepts lines by file name, and gets them stored by the servers of a ring.

    async with await open_shipper(environment, settings) as shipper:
        delivery = shipper.send("app.log", [b"one line", b"another"])
        await delivery                      # stored, once and in order
        await shipper.flush()

It carries out rules and contains none: `shipping_rules` says which batch goes where and when,
`server_pool` knows the servers, `backlog` holds lines in memory and on disk; `BatchShipper` carries
out the actions of the rules. `deliver` is for callers that keep lines until they are stored, like
`tail`: it bypasses the backlog.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Self

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DiskFull,
    InvalidConfiguration,
    Overloaded,
    RaftwoodError,
    SequenceForgotten,
    ShuttingDown,
    StoreDamaged,
    TooLarge,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.clogs.client.backlog import Backlog
from raftwood.clogs.client.batch_builder import BatchEncoding, Fields, LineDelivery, MaskLines
from raftwood.clogs.client.server_pool import RingConnections, RingFollower, ShipperCredentials
from raftwood.clogs.client.settings import ClogsClientSettings, WhenFull
from raftwood.clogs.client.shipping_rules import (
    Action,
    Done,
    LoadBatch,
    LocateFile,
    QueuedBatch,
    ShipBatch,
    ShippingLimits,
    ShippingRules,
)
from raftwood.clogs.client.spool import Spool, SpoolSlots, open_slots
from raftwood.clogs.client.status import Counters, ShipperStatus, shipper_status
from raftwood.clogs.configuration import (
    LogServer,
    RingConfiguration,
    VersionedConfiguration,
    check_configuration,
    checked_file_name,
    configuration_digest,
)
from raftwood.clogs.configuration_sources import (
    FileConfigurationSource,
    ReceiverConfigurationSource,
)
from raftwood.clogs.errors import OutOfOrder, PlaceMoved
from raftwood.clogs.frames import (
    ClogsMessage,
    LineBatch,
    MessageType,
    decode_message,
    encode_message,
)
from raftwood.clogs.masking import MaskRule, masking_of
from raftwood.clogs.seams import ConfigurationSource
from raftwood.clogs.wire import CONFIGURATION, STORE, ConfigurationAnswer, ConfigurationRequest
from raftwood.delivery.deliveries import Delivery
from raftwood.delivery.pump import Pump
from raftwood.net import ClientTls, Payload, TlsFiles
from raftwood.net.identity import split_address

_TOLD_AFTER_S: Final = 2.0

_log = get_logger("clogs")


class BatchShipper:
    """Sends one shipper's batches; `close` when done."""

    def __init__(
        self,
        settings: ClogsClientSettings,
        rules: ShippingRules,
        ring: RingFollower,
        backlog: Backlog,
        counters: Counters,
        *,
        left: list[Spool],
        on_event: Callable[[], None],
    ) -> None:
        """`left` are spools that other processes left: each is closed once all in it is stored.
        `on_event` is called when the rules may have something to do.
        """
        self._settings = settings
        self._rules = rules
        self._ring = ring
        self._backlog = backlog
        self._counters = counters
        self._left = left
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._loads: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._failing: dict[str, float] = {}
        """Servers that accept nothing, and since when."""
        self._told: set[str] = set()
        """Servers that lines wait for: each is logged once, until it accepts lines again."""
        self.last_error = ""

    def perform(self, action: Action, now: float) -> None:
        if isinstance(action, LoadBatch):
            self._begin(self._load(action), self._loads)
        elif isinstance(action, LocateFile):
            self._locate(action)
        elif self._rules.is_wanted(action):
            self._send(action, now)
        else:
            # The ring has changed since the action was decided, or the batch before could not be
            # sent.
            self._rules.not_sent(action, now=now)

    async def close(self) -> None:
        """Stops; later answers are ignored."""
        self._is_closed = True
        for task in list(self._loads):
            task.cancel()
        tasks = [*self._loads, *self._closing]
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # Asking

    def _send(self, action: ShipBatch, now: float) -> None:
        message = action.batch.message(
            system=self._settings.system, place=action.place, follows=action.follows
        )
        try:
            future = self._call(action.server, message)
        except TooLarge as error:
            self._refused(action, error)
        except RaftwoodError as error:
            self._tell_waiting(action.server, error)
            self._rules.not_sent(action, now=now)
            self._backlog.failed(action.entry)
            self._on_event()
        else:
            counters = self._counters.server(action.server)
            if action.is_repeat:
                counters.retried += action.entry.count
            else:
                counters.sent += action.entry.count
            future.add_done_callback(partial(self._stored, action))
        self._ring.sent(action.server, now)

    def _locate(self, action: LocateFile) -> None:
        message = ClogsMessage(
            type=MessageType.LOCATE, system=self._settings.system, name=action.lane.name
        )
        try:
            future = self._call(action.server, message)
        except RaftwoodError as error:
            self._failed(action, error)
        else:
            future.add_done_callback(partial(self._located, action))

    def _call(self, server: str, message: ClogsMessage) -> "asyncio.Future[Payload]":
        return self._ring.links.call(
            server, STORE, encode_message(message), self._settings.request_ms
        )

    async def _load(self, action: LoadBatch) -> None:
        entry, spool = action.entry, action.entry.spool
        try:
            batch = None if spool is None else await spool.load(entry)
        except RaftwoodError as error:
            self._not_loaded(action, error)
        else:
            if batch is not None and entry.batch is None and entry.spool is not None:
                self._backlog.loaded(entry, batch)
            self._rules.loaded(action.lane, action.attempt)
        self._on_event()

    def _not_loaded(self, action: LoadBatch, error: RaftwoodError) -> None:
        entry = action.entry
        if entry.spool is None:  # it was dropped or acked meanwhile, and so is not there
            self._rules.loaded(action.lane, action.attempt)
        elif isinstance(error, StoreDamaged):
            _log.error("a batch in the spool is lost", file=entry.name, why=error.message)
            if self._rules.refused(action.lane, entry, action.attempt):
                self._backlog.lost(entry, error)
                self._backlog.form_next(entry.name)
        else:
            self._rules.failed(action.lane, None, action.attempt, now=self._loop.time())

    # Answers

    def _located(self, action: LocateFile, future: "asyncio.Future[Payload]") -> None:
        answer = self._answer(future)
        if isinstance(answer, ClogsMessage) and not answer.place:
            answer = Unavailable(f"{action.server} does not tell where {action.lane.name} goes")
        if isinstance(answer, ClogsMessage):
            self._rules.told(action.server, answer.count)
            self._rules.located(action.lane, action.attempt, answer.place)
            self._on_event()
        elif answer is not None:
            self._failed(action, answer)

    def _stored(self, action: ShipBatch, future: "asyncio.Future[Payload]") -> None:
        answer = self._answer(future)
        rules, now = self._rules, self._loop.time()
        if isinstance(answer, ClogsMessage):
            rules.told(action.server, answer.count)
            self._acked(action, answer.place)
        elif isinstance(answer, PlaceMoved):
            rules.moved(action.lane, action.entry, action.attempt, now=now)
        elif isinstance(answer, OutOfOrder):
            rules.out_of_order(action.lane, action.entry, action.attempt, now=now)
        elif isinstance(answer, SequenceForgotten):
            # Later ones of this producer are stored, and a batch is stored only after those before
            # it.
            self._acked(action, action.place)
        elif isinstance(answer, TooLarge):
            # This is the only error that every server will repeat for ever. All others can be
            # fixed, and the lines wait for that.
            self._refused(action, answer)
        elif answer is not None:
            self._failed(action, answer)
        self._on_event()

    def _answer(self, future: "asyncio.Future[Payload]") -> ClogsMessage | RaftwoodError | None:
        """Returns a receiver's answer; None if the shipper is closing."""
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
            # The batch is sent again; even if it was stored, it is stored once.
            return Overloaded(damaged.message)
        return message if message.type is MessageType.ACK else Overloaded("no ack came")

    def _acked(self, action: ShipBatch, place: str) -> None:
        over = self._rules.acked(action.lane, action.entry, place)
        self._told.discard(action.server)
        self._failing.pop(action.server, None)
        for entry in over:
            self._counters.acked += entry.count
            self._counters.server(action.server).acked += entry.count
            spool = entry.spool
            entry.done(None)
            if spool is not None and spool.is_empty and spool in self._left:
                self._left.remove(spool)
                self._begin(spool.close(), self._closing)
        if over:
            self._backlog.form_next(action.entry.name)

    def _refused(self, action: ShipBatch, error: RaftwoodError) -> None:
        entry = action.entry
        over = self._rules.refused(action.lane, entry, action.attempt)
        if not over:
            return
        _log.error("lines are refused for ever", file=entry.name, why=error.message)
        for each in over:
            if each.is_keepable:
                self._counters.refused += each.count
            else:
                self._counters.taken -= each.count  # the caller keeps them, and may give them again
            each.done(error)
        self._backlog.form_next(entry.name)
        self._on_event()

    def _failed(self, action: ShipBatch | LocateFile, error: RaftwoodError) -> None:
        self._tell_waiting(action.server, error)
        entry = action.entry if isinstance(action, ShipBatch) else None
        self._rules.failed(action.lane, entry, action.attempt, now=self._loop.time())
        if isinstance(action, ShipBatch):
            self._backlog.failed(action.entry)
        self._on_event()

    def _tell_waiting(self, server: str, error: RaftwoodError) -> None:
        self.last_error = error.message
        now = self._loop.time()
        # Connections take a moment when a program or a server starts: do not log that.
        since = self._failing.setdefault(server, now)
        if server not in self._told and now - since >= _TOLD_AFTER_S:
            self._told.add(server)
            _log.warning("lines wait", server=server, why=error.message)


_LIFE_BYTES: Final = 16
_SPOOL_RETRY_S: Final = 5.0


class AsyncShipper:
    """Call `start`, and `close` when done."""

    def __init__(
        self,
        environment: Environment,
        settings: ClogsClientSettings,
        access: ShipperCredentials,
        source: ConfigurationSource,
        *,
        host: str,
        tags: Sequence[tuple[str, str]],
        mask: MaskLines | None,
    ) -> None:
        self._environment = environment
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._slots: SpoolSlots | None = None
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
                retry=Backoff(
                    first_ms=settings.retry_first_ms, longest_ms=settings.retry_longest_ms
                ),
            ),
            self._ring.route,
        )
        encoding = BatchEncoding(
            life=environment.random.randbytes(_LIFE_BYTES),
            codec=settings.compression.codec,
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
        self._pump = Pump(self._turn)
        self._room: asyncio.Event = asyncio.Event()
        self._backlog.on_room = self._tell_room
        self.on_room: Callable[[], None] | None = None
        """Called when memory is freed."""
        self._ring.on_servers = self._rules.servers_changed
        self._ring.on_event = self._pump.soon
        self._is_closed = False
        self._delivering = 0
        """Lines that a caller of `deliver` keeps until they are stored."""
        self._sending = BatchShipper(
            settings,
            self._rules,
            self._ring,
            self._backlog,
            self.counters,
            left=self._left,
            on_event=self._pump.soon,
        )

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: ClogsClientSettings,
        access: ShipperCredentials,
        source: ConfigurationSource,
        *,
        host: str = "",
        tags: Sequence[tuple[str, str]] = (),
        mask: MaskLines | None = None,
    ) -> "AsyncShipper":
        """Starts a shipper, which accepts lines at once, and holds them until there is a
        configuration. The shipper closes the source.
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
        shipper._pump.soon()
        return shipper

    def _use(self, slots: SpoolSlots) -> None:
        self._slots = slots
        self._left += slots.left
        self._backlog.use(slots.own)
        for spool in [*slots.left, slots.own]:
            spool.on_failed = self._backlog.spool_failed
            for entry in spool.recover():
                self._backlog.resume(entry)

    async def _open_later(self) -> None:
        """There was no room for a spool; tries again later."""
        while self._slots is None:
            await asyncio.sleep(_SPOOL_RETRY_S)
            try:
                slots = await _slots_of(self._environment, self._settings)
                if slots is not None:
                    self._use(slots)
            except RaftwoodError as error:
                _log.warning("there is no spool yet", why=error.message)
        self._pump.soon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(wait_ms=self._settings.exit_ms if kind is None else 0)

    # Lines come

    def send(
        self, name: str, lines: Sequence[bytes], *, time_ns: int | None = None
    ) -> Delivery[None]:
        """Takes lines of a file, in order. With `when_full = block` it raises `Overloaded` if there
        is no room; `put` waits for it.
        """
        self._check_open()
        if self._settings.when_full is WhenFull.BLOCK and not self._backlog.has_room():
            raise Overloaded(
                f"{self._backlog.held_bytes} bytes of lines are not stored yet: send more slowly, "
                "or raise clogs_client.memory_bytes_max"
            )
        delivery = LineDelivery(len(lines))
        if lines:
            self.take(checked_file_name(name), lines, time_ns=time_ns, delivery=delivery)
        return delivery

    async def put(
        self, name: str, lines: Sequence[bytes], *, time_ns: int | None = None
    ) -> Delivery[None]:
        """Like `send`, but waits for room, for up to `block_ms`."""
        # After a timeout `send` raises the reason.
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
        delivery: LineDelivery | None = None,
    ) -> None:
        """Like `send`, with a checked name, and regardless of room."""
        if time_ns is None:
            time_ns = self._environment.clock.wall_ns()
        now = self._loop.time()
        self._backlog.take(name, lines, time_ns=time_ns, now=now, delivery=delivery)
        self._pump.soon()

    def take_records(
        self,
        name: str,
        lines: Sequence[bytes],
        *,
        times_ns: Sequence[int],
        fields: Sequence[Fields],
    ) -> None:
        """Like `take`, for lines with a time and further fields each."""
        now = self._loop.time()
        self._backlog.take_records(name, lines, times_ns=times_ns, fields=fields, now=now)
        self._pump.soon()

    @property
    def has_room(self) -> bool:
        return self._backlog.has_room()

    @property
    def held_bytes(self) -> int:
        """Returns how much memory the lines take."""
        return self._backlog.held_bytes

    @property
    def held_lines(self) -> int:
        """Returns how many lines taken or resumed are not acked, dropped or refused yet."""
        return self._backlog.held_lines + self._delivering

    async def deliver(self, batch: LineBatch) -> None:
        """Ships a batch that the caller keeps; returns once it is stored."""
        self._check_open()
        delivery = LineDelivery(batch.count)

        def done(error: RaftwoodError | None) -> None:
            if not isinstance(error, ShuttingDown):  # the caller still has them at the end
                self._delivering -= batch.count
            delivery.settle(batch.count, error)

        self.counters.taken += batch.count
        self._delivering += batch.count
        self._rules.add(QueuedBatch(batch, done, is_keepable=False))
        self._pump.soon()
        await delivery

    async def flush(self) -> None:
        """Waits until all that was taken is stored, or dropped."""
        self._backlog.form_all()
        self._pump.soon()
        entries = self._rules.entries()
        waiting = LineDelivery(len(entries))
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
        """Waits until all that was taken is stored, or in the spool."""
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
        """Spools in pieces, because bytes that wait for a disk are bounded; whether all is in."""
        while True:
            kept = self._backlog.kept_batches
            is_whole = self._backlog.keep_all()
            self._pump.soon()
            await own.sync()
            if is_whole or self._backlog.kept_batches == kept:
                return is_whole

    async def close(self, *, wait_ms: int | None = None) -> None:
        """Waits up to `wait_ms` until all is stored; the rest goes to the spool, if there is one.

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
        self._pump.close()
        self._room.set()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._slots is not None:
            await self._keep_all(self._slots.own)
        await self._ring.close()
        await self._sending.close()
        self._give_up()
        if self._slots is not None:
            for spool in [*self._left, self._slots.own]:
                await spool.close()

    def _give_up(self) -> None:
        if dropped := self._backlog.give_up():
            _log.warning("lines were dropped at the end", lines=dropped)

    def status(self) -> ShipperStatus:
        """Returns the figures to show to people."""
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
        """Counts lines that were dropped before they arrived here."""
        self.counters.taken += lines
        self.counters.dropped += lines
        self.counters.server(None).dropped += lines

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Calls a function later on the shipper's loop."""
        self._loop.call_later(delay_s, callback)

    def _tell_room(self) -> None:
        self._room.set()
        if self.on_room is not None:
            self.on_room()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ShuttingDown("the shipper is closed: make another one")

    # Batches go

    def _turn(self, now: float) -> float:
        self._ring.tick(now)
        forms_at = self._backlog.form_due(now)
        for action in self._rules.actions(now):
            self._sending.perform(action, now)
        return min(forms_at, self._rules.due, self._ring.due)


def _both(first: Done, flushes: list[LineDelivery], error: RaftwoodError | None) -> None:
    first(error)
    for each in list(flushes):
        each.settle(1, None)


async def _slots_of(environment: Environment, settings: ClogsClientSettings) -> SpoolSlots | None:
    """Returns None if the disk has no room for a spool."""
    try:
        return await open_slots(
            environment, settings.spool_folder, bytes_max=settings.spool_bytes_max
        )
    except DiskFull as error:
        _log.warning("there is no room for a spool for now", reason=error.message)
        return None


_ANSWER_MS: Final = 10_000
_CONNECT_S: Final = 5.0
_OTHERS_ASKED: Final = 3
"""Servers of the ring that are asked for configurations, beside those of the settings."""


async def open_shipper(
    environment: Environment,
    settings: ClogsClientSettings,
    *,
    tags: Sequence[tuple[str, str]] = (),
    mask_rules: Sequence[MaskRule] = (),
) -> AsyncShipper:
    """Returns a shipper that takes lines at once. `mask_rules` see the result of `masks`."""
    mask = mask_of(settings.masks, mask_rules)
    access = access_of(settings)
    return await AsyncShipper.start(
        environment,
        settings,
        access,
        configuration_source(environment, settings, access),
        host=socket.gethostname(),
        tags=tags,
        mask=mask,
    )


def mask_of(masks: Sequence[str], mask_rules: Sequence[MaskRule] = ()) -> MaskLines | None:
    """Returns the masking of a batch's lines; `InvalidConfiguration` for an unusable rule."""
    masking = masking_of(masks, mask_rules)
    return None if masking is None else masking.mask_lines


def access_of(settings: ClogsClientSettings) -> ShipperCredentials:
    """Returns the access key, and the certificates to trust."""
    if not settings.access_key or not settings.access_secret:
        raise InvalidConfiguration(
            "a shipper needs an access key: make one by `raftwood key create PROJECT=writer`, and "
            "set clogs_client.access_key and access_secret"
        )
    tls = None
    if settings.authorities:
        tls = ClientTls(TlsFiles(authorities=settings.authorities))
    secret = settings.access_secret.as_key()
    return ShipperCredentials(key_id=settings.access_key, secret=secret, tls=tls)


def configuration_source(
    environment: Environment, settings: ClogsClientSettings, access: ShipperCredentials
) -> ConfigurationSource:
    """Returns the file source, if a file is named; else one that asks the settings' servers."""
    if settings.configuration_file:
        return FileConfigurationSource(environment, settings.configuration_file)
    return _AskedServers(environment, settings, access)


def first_configuration(addresses: Sequence[str]) -> VersionedConfiguration:
    """Returns a configuration made of addresses alone, for the time before a server sends one."""
    servers = [LogServer(host, port) for host, port in map(split_address, addresses)]
    configuration = RingConfiguration(tuple(servers))
    check_configuration(configuration)
    return VersionedConfiguration(0, configuration_digest(configuration), configuration)


class _AskedServers:
    """Asks the servers of the settings, and then those of the ring, for the configuration."""

    def __init__(
        self, environment: Environment, settings: ClogsClientSettings, access: ShipperCredentials
    ) -> None:
        self._first = first_configuration(settings.servers)
        self._random = environment.random
        self._links = RingConnections(environment, access, _ignore)
        self._source = ReceiverConfigurationSource(environment, self._ask, settings.ring)

    async def changes(self) -> AsyncIterator[VersionedConfiguration]:
        yield self._first
        self._links.update(self._first.configuration.servers)
        async for each in self._source.changes():
            self._links.update(self._asked(each.configuration.servers))
            yield each

    def _asked(self, servers: Sequence[LogServer]) -> list[LogServer]:
        """Returns the settings' servers, which may all be gone one day, and some of the ring."""
        first = self._first.configuration.servers
        addresses = {each.address for each in first}
        others = [each for each in servers if each.address not in addresses]
        return [*first, *self._random.sample(others, min(len(others), _OTHERS_ASKED))]

    async def _ask(self, request: ConfigurationRequest) -> ConfigurationAnswer:
        channel = await self._links.any_channel(_CONNECT_S)
        return await channel.ask(CONFIGURATION, request, request.wait_ms + _ANSWER_MS)

    async def close(self) -> None:
        await self._source.close()
        await self._links.close()


def _ignore(_: str) -> None:
    """An unreachable server is asked again later."""
