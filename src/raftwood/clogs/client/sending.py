"""`Sending`: does what the shipping rules say, and tells them what came of it."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from raftwood.base.errors import (
    Overloaded,
    RaftwoodError,
    SequenceForgotten,
    StoreDamaged,
    TooLarge,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.clogs.client.backlog import Backlog
from raftwood.clogs.client.counters import Counters
from raftwood.clogs.client.ring_follower import RingFollower
from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.clogs.client.shipping_rules import Action, Load, Locate, Send, ShippingRules
from raftwood.clogs.client.spool import Spool
from raftwood.clogs.errors import OutOfOrder, PlaceMoved
from raftwood.clogs.frames import Message, MessageType, decode_message, encode_message
from raftwood.clogs.wire import STORE
from raftwood.net import Payload

_TOLD_AFTER_S: Final = 2.0

_log = get_logger("clogs")


class Sending:
    """Of one shipper; `close` when done."""

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
        """`left` are spools that others left: each is closed once all in it is stored. `on_event`
        is called when the rules may have something to do."""
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
        """Servers that take nothing, and since when."""
        self._told: set[str] = set()
        """Servers that lines wait for: each is told of once, until it takes some again."""
        self.last_error = ""

    def perform(self, action: Action, now: float) -> None:
        if isinstance(action, Load):
            self._begin(self._load(action), self._loads)
        elif isinstance(action, Locate):
            self._locate(action)
        elif self._rules.is_wanted(action):
            self._send(action, now)
        else:
            # The ring has changed since the rules said so, or the one before could not be sent.
            self._rules.not_sent(action, now=now)

    async def close(self) -> None:
        """What is answered from now on is for nobody."""
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

    def _send(self, action: Send, now: float) -> None:
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

    def _locate(self, action: Locate) -> None:
        message = Message(
            type=MessageType.LOCATE, system=self._settings.system, name=action.lane.name
        )
        try:
            future = self._call(action.server, message)
        except RaftwoodError as error:
            self._failed(action, error)
        else:
            future.add_done_callback(partial(self._located, action))

    def _call(self, server: str, message: Message) -> "asyncio.Future[Payload]":
        return self._ring.links.call(
            server, STORE, encode_message(message), self._settings.request_ms
        )

    async def _load(self, action: Load) -> None:
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

    def _not_loaded(self, action: Load, error: RaftwoodError) -> None:
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

    def _located(self, action: Locate, future: "asyncio.Future[Payload]") -> None:
        answer = self._answer(future)
        if isinstance(answer, Message) and not answer.place:
            answer = Unavailable(f"{action.server} does not tell where {action.lane.name} goes")
        if isinstance(answer, Message):
            self._rules.told(action.server, answer.count)
            self._rules.located(action.lane, action.attempt, answer.place)
            self._on_event()
        elif answer is not None:
            self._failed(action, answer)

    def _stored(self, action: Send, future: "asyncio.Future[Payload]") -> None:
        answer = self._answer(future)
        rules, now = self._rules, self._loop.time()
        if isinstance(answer, Message):
            rules.told(action.server, answer.count)
            self._acked(action, answer.place)
        elif isinstance(answer, PlaceMoved):
            rules.moved(action.lane, action.entry, action.attempt, now=now)
        elif isinstance(answer, OutOfOrder):
            rules.out_of_order(action.lane, action.entry, action.attempt, now=now)
        elif isinstance(answer, SequenceForgotten):
            # Later ones of this producer are stored, and none is before those in front of it are.
            self._acked(action, action.place)
        elif isinstance(answer, TooLarge):
            # Of all that can be said against a batch, this alone will be said by all servers, for
            # ever: what else is wrong somebody can put right, and the lines wait for that.
            self._refused(action, answer)
        elif answer is not None:
            self._failed(action, answer)
        self._on_event()

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

    def _refused(self, action: Send, error: RaftwoodError) -> None:
        entry = action.entry
        over = self._rules.refused(action.lane, entry, action.attempt)
        if not over:
            return
        _log.error("lines are refused for ever", file=entry.name, why=error.message)
        for each in over:
            if each.is_keepable:
                self._counters.refused += each.count
            else:
                self._counters.taken -= each.count  # whoever keeps them may give them again
            each.done(error)
        self._backlog.form_next(entry.name)
        self._on_event()

    def _failed(self, action: Send | Locate, error: RaftwoodError) -> None:
        self._tell_waiting(action.server, error)
        entry = action.entry if isinstance(action, Send) else None
        self._rules.failed(action.lane, entry, action.attempt, now=self._loop.time())
        if isinstance(action, Send):
            self._backlog.failed(action.entry)
        self._on_event()

    def _tell_waiting(self, server: str, error: RaftwoodError) -> None:
        self.last_error = error.message
        now = self._loop.time()
        # Connections take a moment when a program starts, and when a server does: no news.
        since = self._failing.setdefault(server, now)
        if server not in self._told and now - since >= _TOLD_AFTER_S:
            self._told.add(server)
            _log.warning("lines wait", server=server, why=error.message)
