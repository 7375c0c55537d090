"""The host's work, turn by turn: all that has come in is dealt with together.

In a turn, each replica with something to do hands out its work. One frame goes to each peer, then
one write to the shared log, then committed entries are applied. A leader's appends may leave before
its own sync; votes and acknowledgements, its own included, wait for it: they are the responses that
a write's end delivers. Applying comes last because it may be slow, and the peers need not wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, Overloaded, ShuttingDown
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import Record, SegmentLog
from raftwood.raft.core import APPEND_THREAD, APPLY_THREAD, Message, MessageKind
from raftwood.raft.host.chores import Chores
from raftwood.raft.host.outbox import Outbox
from raftwood.raft.host.replica import Replica, Ticket
from raftwood.raft.host.writes import PlannedWrite, needs_no_write, plan_write

WRITES_IN_FLIGHT_MAX = 2
"""Proposals wait for a third one, and become larger runs meanwhile."""
_WRITE_BYTES_MAX = 8 << 20
"""Replicas are written together up to here, or to what the log takes at once, if that is less."""

_log = get_logger("raft")
_SNAPSHOT = MessageKind.SNAPSHOT

_Planned = tuple[Replica, PlannedWrite, Message]


class Turns:
    """Schedules and runs turns; one per host."""

    def __init__(
        self,
        environment: Environment,
        log: SegmentLog,
        outbox: Outbox,
        chores: Chores,
        *,
        store: int,
    ) -> None:
        self._environment = environment
        self._log = log
        self._write_bytes_max = min(_WRITE_BYTES_MAX, log.write_bytes_max)
        self._outbox = outbox
        self._store = store
        self._chores = chores
        self._loop = asyncio.get_running_loop()
        self._dirty: list[Replica] = []
        self._held: list[Replica] = []
        """Their proposals wait for a write to end."""
        self._is_scheduled = False
        self._in_flight = 0
        self._is_closed = False
        self.turn_count = 0
        self.write_count = 0

    def mark(self, replica: Replica) -> None:
        """A replica may have work; the turn comes soon, together with other replicas' work."""
        if not replica.is_dirty:
            replica.is_dirty = True
            self._dirty.append(replica)
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._loop.call_soon(self._run)

    def at_once(self, work: Callable[..., None], *arguments: object) -> None:
        """Take in what came, which is known to be all that there is for now, and do its turn.

        A turn of the loop in between would only add to every append's latency.
        """
        was_scheduled, self._is_scheduled = self._is_scheduled, True
        try:
            work(*arguments)
        finally:
            self._is_scheduled = was_scheduled
            self._run()

    def close(self) -> None:
        self._is_closed = True

    def _run(self) -> None:
        if self._is_closed:
            return
        self._is_scheduled = False
        if self._dirty:
            self.guarded(self._turn)
        else:
            # The answers that a write's end releases may be all there is.
            self.guarded(self._outbox.flush)

    def guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Do work on replicas; whatever fails in it ends the process."""
        try:
            work(*arguments)
        except Exception as error:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Whatever it is, a replica's state in memory may no longer be what it promised."""
        _log.error("a turn failed", exc_info=error)
        self._environment.end_process(f"the raft host cannot go on: {error!r}")

    def _turn(self) -> None:
        self.turn_count += 1
        dirty, self._dirty = self._dirty, []
        writes: list[tuple[Replica, Message]] = []
        applies: list[tuple[Replica, Message]] = []
        for replica in dirty:
            replica.is_dirty = False
            if replica.is_serving:
                self._collect(replica, writes, applies)
        self._outbox.flush()
        if writes:
            self._write(writes)
        for replica, message in applies:
            replica.apply(message)
            self._chores.applied(replica)
            if replica.is_serving and replica.node.has_ready():
                self.mark(replica)
        for replica in dirty:
            if replica.book.known:
                replica.book.known.clear()
            if replica.storage.missed is not None and not replica.is_fetching:
                self._chores.fetch(replica)

    def _collect(
        self,
        replica: Replica,
        writes: list[tuple[Replica, Message]],
        applies: list[tuple[Replica, Message]],
    ) -> None:
        if replica.proposals.queue:
            if self._in_flight < WRITES_IN_FLIGHT_MAX or replica.has_waited:
                replica.has_waited = False
                replica.enter_proposals()
                if replica.proposals.queue:
                    self.mark(replica)
            else:
                self._held.append(replica)
        if replica.reads.waiting:
            replica.begin_reads()
        if not replica.node.has_ready():
            return
        outbox, group, book = self._outbox, replica.group, replica.book
        for message in replica.take_ready().messages:
            target = message.target
            if target == APPEND_THREAD:
                writes.append((replica, message))
            elif target == APPLY_THREAD:
                applies.append((replica, message))
            elif message.kind is _SNAPSHOT:
                self._chores.send_snapshot(replica, message)
            elif message.source == self._store:
                # Else a follower's question to a former leader: it will ask the new one itself.
                outbox.add(group, message, book)

    # Writing

    def _write(self, writes: list[tuple[Replica, Message]]) -> None:
        with self._log.flushing():
            self._plan_and_submit(writes)

    def _plan_and_submit(self, writes: list[tuple[Replica, Message]]) -> None:
        planned: list[_Planned] = []
        size = 0
        for replica, message in writes:
            if replica.backlog:
                _put_behind(replica.backlog, message)
                continue
            storage, committed = replica.storage, replica.node.raft.log.committed
            since_state = replica.bytes_since_state
            if needs_no_write(storage, message, committed=committed, bytes_since_state=since_state):
                self._respond_in_order(replica, message.responses)
                continue
            plan = plan_write(
                replica.group,
                storage,
                message,
                replica.book,
                committed=committed,
                bytes_since_state=since_state,
            )
            if not plan.records:
                self._respond_in_order(replica, message.responses)
                continue
            plan_bytes = plan.size_bytes()
            if planned and size + plan_bytes > self._write_bytes_max:
                self._submit(planned)
                planned, size = [], 0
            planned.append((replica, plan, message))
            size += plan_bytes
        if planned:
            self._submit(planned)

    def _submit(self, planned: list[_Planned]) -> bool:
        records: Sequence[Record] = planned[0][1].records
        if len(planned) > 1:
            records = [record for _, plan, _ in planned for record in plan.records]
        tickets = [
            (replica, Ticket(message.responses, message.snapshot))
            for replica, _, message in planned
        ]
        try:
            self._log.write(records, partial(self._durable, tickets))
        except (DiskFull, Overloaded) as error:
            for replica, _, message in planned:
                if not replica.backlog_ticks:  # it is tried again with every tick, and told once
                    _log.warning("a write waits", group=replica.group, reason=error.message)
                replica.backlog.append(message)
            return False
        except ShuttingDown:
            return False
        self._in_flight += 1
        self.write_count += 1
        for replica, plan, _ in planned:
            size = plan.accept(replica.storage)
            replica.bytes_since_state = 0 if plan.state else replica.bytes_since_state + size
        for replica, ticket in tickets:
            replica.tickets.append(ticket)
        return True

    def retry(self, replica: Replica) -> None:
        """Try again what the log refused, in order."""
        while replica.backlog:
            message = replica.backlog[0]
            plan = plan_write(
                replica.group,
                replica.storage,
                message,
                replica.book,
                committed=_committed(replica, message),
                bytes_since_state=replica.bytes_since_state,
            )
            replica.backlog.popleft()
            if not plan.records:
                self._respond_in_order(replica, message.responses)
            elif not self._submit([(replica, plan, message)]):
                # It went to the end of the queue: back to where it was.
                if replica.backlog:
                    replica.backlog.rotate(1)
                return

    # Durable

    def _durable(self, tickets: list[tuple[Replica, Ticket]]) -> None:
        self._in_flight -= 1
        if self._is_closed:
            return
        self.at_once(self.guarded, self._complete, tickets)

    def _complete(self, tickets: list[tuple[Replica, Ticket]]) -> None:
        for replica, ticket in tickets:
            if ticket.snapshot is not None:
                done = partial(self._installed, replica, ticket)
                self._chores.install_snapshot(replica, ticket.snapshot, done)
            else:
                ticket.is_done = True
                self._release(replica)
        if self._held:
            held, self._held = self._held, []
            for replica in held:
                # Once: what a slow disk writes for other leaders' groups may never leave room.
                replica.has_waited = True
                self.mark(replica)

    def _installed(self, replica: Replica, ticket: Ticket) -> None:
        ticket.is_done = True
        self.guarded(self._release, replica)

    def _release(self, replica: Replica) -> None:
        tickets = replica.tickets
        while tickets and tickets[0].is_done:
            self._respond(replica, tickets.popleft().responses)

    def _respond_in_order(self, replica: Replica, responses: list[Message]) -> None:
        """Responses of a message without records promise what was written before them."""
        if not responses:
            return
        if replica.tickets:
            _add_new(replica.tickets[-1].responses, responses)
        else:
            self._respond(replica, responses)

    def _respond(self, replica: Replica, responses: list[Message]) -> None:
        if replica.is_halted:
            return
        store, outbox = self._store, self._outbox
        for response in responses:
            if response.target == store:
                replica.step(response)
            else:
                outbox.add(replica.group, response, replica.book)
        if replica.has_work:
            self.mark(replica)
        elif not self._is_scheduled:
            self._schedule()


def _committed(replica: Replica, message: Message) -> int:
    """What is committed, for a write that has waited.

    Its entries may have been replaced since, by others that wait behind it: these are committed
    perhaps, and not those of the same indexes that are written now.
    """
    log, entries = replica.node.raft.log, message.entries
    is_current = not entries or log.holds(entries[-1].index, term=entries[-1].term)
    return log.committed if is_current else 0


def _put_behind(backlog: deque[Message], message: Message) -> None:
    """Let a write wait behind others; one that only says something is said along with the last."""
    if message.entries or message.snapshot is not None or message.term:
        backlog.append(message)
    else:
        _add_new(backlog[-1].responses, message.responses)


def _add_new(waiting: list[Message], responses: list[Message]) -> None:
    """A leader asks again and again: what waits for long must not grow with time."""
    waiting += [response for response in responses if response not in waiting]
