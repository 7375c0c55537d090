"""The host's work, turn by turn: one turn handles all that has come in since the last.

In a turn, each replica with something to do hands out its work. One frame goes to each peer, then
one write to the shared log, then committed entries are applied. A leader's appends may leave before
its own sync (Raft dissertation, section 10.2.1): peers write them at the same time, and the leader
counts its own copy only once it is durable. Votes and acknowledgements, its own included, wait for
the sync: they are the responses that a write's end delivers. Sent earlier, a crash would take back
what a leader has counted. Planted bugs: "acks before sync", "disk without sync". Applying comes
last because it may be slow, and the peers need not wait.

`Outbox` gathers the messages of a turn. The core behaves as etcd's does, with an append per commit
and an answer per append. Here they are merged: appends of one group that follow one another become
one, answers keep the highest index. An append that only carries a new commit index waits up to a
tick for one with entries, which carries it too, unless a reader waits for it there.

`HostTasks` runs the work beside the turns: it saves, sends and restores snapshots, and fetches
entries.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, Overloaded, RaftwoodError, ShuttingDown, StoreDamaged
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import Record, SegmentLog
from raftwood.raft.core import APPEND_THREAD, APPLY_THREAD, Message, MessageKind, Snapshot
from raftwood.raft.entry_format import RunCache
from raftwood.raft.group_log import PlannedWrite, needs_no_write, plan_write
from raftwood.raft.replica import Replica, Ticket
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.snapshotter import Snapshotter, SnapshotTransfer
from raftwood.raft.transport import encode_frames

INSTALL_PAUSE_S: Final = 1.0
HELD_BACK_MAX: Final = 10
"""The log grows to so many times its usual length for a follower that catches up.

Without it, a follower that gets a snapshot more slowly than new ones are taken never arrives. Test:
test_host_snapshots::test_a_snapshot_arrives_although_others_are_taken_faster_than_it_is_sent
"""
FETCHES_MAX: Final = 8
"""Groups that read from disk at once, when a store is back that was away for long."""
FETCH_MESSAGES: Final = 8
"""How many messages' entries are read from disk at once for a slow follower."""

_log = get_logger("raft")


class HostTasks:
    """Tasks of one host; they end with it."""

    def __init__(
        self,
        settings: RaftHostSettings,
        snapshotting: Snapshotter,
        transfer: SnapshotTransfer,
        *,
        on_damage: Callable[[Replica, StoreDamaged], None],
        on_bug: Callable[[str], None],
        learn_addresses: Callable[[dict[int, str]], None],
    ) -> None:
        self._settings = settings
        self._snapshotting = snapshotting
        self._transfer = transfer
        self._on_damage = on_damage
        self._on_bug = on_bug
        self._learn_addresses = learn_addresses
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._fetching = asyncio.Semaphore(FETCHES_MAX)

    def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._on_bug(f"{task.get_name()} failed: {task.exception()!r}")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    @contextlib.contextmanager
    def halting(self, replica: Replica) -> Iterator[None]:
        """Halt a replica whose data is bad, and have it repaired: bad data must not spread.

        Test: tests/assurance/raft/test_raft_hosts::test_flipped_bits_of_one_store_never_spread
        """
        try:
            yield
        except StoreDamaged as error:
            self._on_damage(replica, error)
            raise

    def applied(self, replica: Replica) -> None:
        """After a batch of entries: take a snapshot if one is due."""
        if replica.storage.state.voters:
            self.tell_members(replica)
        every = self._settings.snapshot_entries
        since = replica.applier.applied - replica.snapshot_index
        if not every or since < every:
            return
        # A follower that gets the last one, or what comes after it, would have to begin again.
        if not replica.is_waited_for or since >= every * HELD_BACK_MAX:
            replica.snapshot_index = replica.applied
            self.run(self._save_and_compact(replica), f"snapshot of group {replica.group}")

    async def _save_and_compact(self, replica: Replica) -> None:
        try:
            with self.halting(replica):
                index = await self._snapshotting.save(replica)
                kept = self._settings.snapshot_entries_kept
                await self._snapshotting.compact(replica, index, log_up_to=max(0, index - kept))
        except RaftwoodError as error:
            _log.warning("no snapshot", group=replica.group, reason=error.message)

    def tell_members(self, replica: Replica) -> None:
        """Takes a snapshot for a log of version 1, which lacks its first members."""

        async def tell() -> None:
            with contextlib.suppress(RaftwoodError), self.halting(replica):
                await self._snapshotting.tell_members(replica)

        if not replica.is_saving:
            self.run(tell(), f"members of group {replica.group}")

    def send_snapshot(self, replica: Replica, message: Message) -> None:
        self.run(self._transfer.send(replica, message), f"snapshot to store {message.target}")

    def install_snapshot(
        self, replica: Replica, snapshot: Snapshot, done: Callable[[], None]
    ) -> None:
        """Restore a leader's snapshot that the log has made way for."""
        replica.is_installing = True
        work = self._install(replica, snapshot, done)
        self.run(work, f"snapshot of group {replica.group} at {snapshot.index}")

    async def _install(
        self, replica: Replica, snapshot: Snapshot, done: Callable[[], None]
    ) -> None:
        async with replica.restoring:
            if not await self._restored(replica, snapshot):
                return
        # Another one may have come meanwhile, and waits for its turn.
        replica.is_installing = self._is_overtaken(replica, snapshot)
        replica.proposals.overtaken(snapshot.index)
        if not replica.is_installing:
            replica.reads.applied(snapshot.index)
            replica.snapshot_index = snapshot.index
        self._learn_addresses(replica.applier.addresses)
        done()

    async def _restored(self, replica: Replica, snapshot: Snapshot) -> bool:
        """Restore a snapshot, unless a newer one follows; false where the replica has ended."""
        while not replica.is_halted:
            if self._is_overtaken(replica, snapshot):
                return True
            try:
                with self.halting(replica):
                    await self._snapshotting.installed(replica, snapshot)
                return True
            except (StoreDamaged, ShuttingDown):
                return False
            except RaftwoodError as error:
                # The disk has no room for the snapshot's files, say.
                _log.warning("snapshot not restored", group=replica.group, reason=error.message)
                await asyncio.sleep(INSTALL_PAUSE_S)
        return False

    @staticmethod
    def _is_overtaken(replica: Replica, snapshot: Snapshot) -> bool:
        return snapshot.index not in replica.storage.state.snapshots

    def fetch(self, replica: Replica) -> None:
        """Bring entries into memory that a slow follower needs."""
        first = replica.storage.missed
        if first is not None:
            replica.is_fetching = True
            name = f"entries of group {replica.group} from {first} on"
            self.run(self._fetch(replica, first), name)

    async def _fetch(self, replica: Replica, first: int) -> None:
        try:
            with self.halting(replica):
                async with self._fetching:
                    await replica.storage.fetch(first, self._fetch_bytes(replica))
        except RaftwoodError as error:
            _log.warning("entries not read", group=replica.group, reason=error.message)
        finally:
            replica.is_fetching = False
            replica.storage.missed = None

    def _fetch_bytes(self, replica: Replica) -> int:
        one = self._settings.message_bytes_max
        return max(one, min(one * FETCH_MESSAGES, replica.cache_bytes_max))

    def verify_snapshots(self, replica: Replica) -> None:
        """Reads a snapshot that its receiver refused: this store's copy may be bad."""

        async def verify() -> None:
            try:
                with contextlib.suppress(RaftwoodError), self.halting(replica):
                    await self._snapshotting.verify(replica)
            finally:
                replica.is_verifying = False

        if replica.is_verifying:
            return
        replica.is_verifying = True
        self.run(verify(), f"verification of the snapshots of group {replica.group}")


SendFrame = Callable[[int, list[Buffer]], None]
"""Give a frame, in pieces, to a peer's connection; it may be lost."""

_APPEND = MessageKind.APPEND
_APPEND_RESPONSE = MessageKind.APPEND_RESPONSE
_READ_INDEX_RESPONSE = MessageKind.READ_INDEX_RESPONSE

_Place = tuple[int, int]
"""Peer and group."""
_Item = tuple[int, Message, RunCache]


class Outbox:
    """Messages for all peers until the end of the turn."""

    __slots__ = (
        "_appends",
        "_commit_delay_s",
        "_delayed",
        "_items",
        "_loop",
        "_responses",
        "_send",
        "_timer",
    )

    def __init__(self, send: SendFrame, *, commit_delay_s: float) -> None:
        self._send = send
        self._commit_delay_s = commit_delay_s
        self._loop = asyncio.get_running_loop()
        self._items: dict[int, list[_Item]] = {}
        self._appends: dict[_Place, int] = {}
        self._responses: dict[_Place, int] = {}
        self._delayed: dict[_Place, _Item] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, group: int, message: Message, book: RunCache) -> None:
        target, kind = message.target, message.kind
        if kind is _APPEND:
            place = (target, group)
            if not message.entries and place not in self._appends:
                self._delay(place, (group, message, book))
                return
            if self._delayed:
                self._delayed.pop(place, None)
            if self._merge_append(place, message):
                return
            self._appends[place] = len(self._items.get(target, ()))
        elif kind is _READ_INDEX_RESPONSE:
            delayed = self._delayed.pop((target, group), None)
            if delayed is not None:
                self._items.setdefault(target, []).append(delayed)
        elif kind is _APPEND_RESPONSE:
            place = (target, group)
            if self._merge_response(place, message):
                return
            self._responses[place] = len(self._items.get(target, ()))
        items = self._items.get(target)
        if items is None:
            self._items[target] = [(group, message, book)]
        else:
            items.append((group, message, book))

    def _merge_append(self, place: _Place, message: Message) -> bool:
        position = self._appends.get(place)
        if position is None:
            return False
        before = self._items[place[0]][position][1]
        if before.term != message.term or before.index + len(before.entries) != message.index:
            return False
        # A new list: the core and messages to other followers hold the old one.
        before.entries = before.entries + message.entries if before.entries else message.entries
        before.commit = message.commit
        return True

    def _merge_response(self, place: _Place, message: Message) -> bool:
        # An acknowledgement covers everything before it, so the highest says all. A refusal names
        # one append, and an answer of another term counts for another leader: both go as they are.
        position = self._responses.get(place)
        if position is None:
            return False
        before = self._items[place[0]][position][1]
        if before.rejected or message.rejected or before.term != message.term:
            return False
        before.index = max(before.index, message.index)
        return True

    def _delay(self, place: _Place, item: _Item) -> None:
        self._delayed[place] = item
        if self._timer is None:
            self._timer = self._loop.call_later(self._commit_delay_s, self._send_delayed)

    def _send_delayed(self) -> None:
        self._timer = None
        delayed, self._delayed = self._delayed, {}
        for (target, _), item in delayed.items():
            self._items.setdefault(target, []).append(item)
        self.flush()

    def flush(self) -> None:
        """The turn ends: one frame to each peer that there is something for."""
        if not self._items:
            return
        items, self._items = self._items, {}
        if self._appends:
            self._appends = {}
        if self._responses:
            self._responses = {}
        for target, messages in items.items():
            for frame in encode_frames(messages):
                self._send(target, frame)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


WRITES_IN_FLIGHT_MAX = 2
"""While so many writes are under way, proposals wait and become larger runs."""
_WRITE_BYTES_MAX = 8 << 20
"""Replicas are written together up to here, or to what the log takes at once, if that is less."""

_SNAPSHOT = MessageKind.SNAPSHOT

_Planned = tuple[Replica, PlannedWrite, Message]


class RaftEngine:
    """Schedules and runs turns; one per host."""

    def __init__(
        self,
        environment: Environment,
        log: SegmentLog,
        outbox: Outbox,
        chores: HostTasks,
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
        """Does work, and its turn at once: the caller knows that no other work comes for now.

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
        """Does work on replicas; any failure in it ends the process."""
        try:
            work(*arguments)
        except Exception as error:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Ends the process: a replica's state in memory may no longer be what it promised."""
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
                # Not a follower's question to a former leader, which the core passes on in the
                # follower's name: peers hear a store about itself only, and would close the
                # connection. The follower asks the new leader itself. Test: test_forwarding::
                # test_a_question_to_a_former_leader_is_not_passed_on_in_the_name_of_who_asked
                outbox.add(group, message, book)

    # Writing

    def _write(self, writes: list[tuple[Replica, Message]]) -> None:
        with self._log.flushing():
            self._plan_and_submit(writes)

    def _plan_and_submit(self, writes: list[tuple[Replica, Message]]) -> None:
        planned: list[_Planned] = []
        size = 0
        for replica, message in writes:
            # One write of this replica was refused. A later one must not pass it: its entries would
            # leave a gap, or be acknowledged without the vote or the cut that came before.
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
            # The core counts these as handed to the disk, so the host keeps them and tries again.
            # Nothing of them is acknowledged meanwhile. Tests: test_host_full_disk
            for replica, _, message in planned:
                if not replica.backlog_ticks:  # each tick tries again; only the first is logged
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
        """Tries writes again that the log refused, in order."""
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
                # Proposals wait for one write and no more (decision 0035): on a slow disk, writes
                # for groups that other stores lead may never leave room.
                replica.has_waited = True
                self.mark(replica)

    def _installed(self, replica: Replica, ticket: Ticket) -> None:
        ticket.is_done = True
        self.guarded(self._release, replica)

    def _release(self, replica: Replica) -> None:
        """Deliver the answers of all writes that are done, in order.

        The oldest may wait for a snapshot to be restored, and what comes after it builds on that.
        Planted bug: "releases answers of later writes"
        """
        tickets = replica.tickets
        while tickets and tickets[0].is_done:
            self._respond(replica, tickets.popleft().responses)

    def _respond_in_order(self, replica: Replica, responses: list[Message]) -> None:
        """Deliver responses of a message without records, after the writes before it.

        Such a response may repeat a promise whose write is under way: a vote that was asked for
        twice, an append that came twice. Planted bug: "answers out of order"
        """
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
    """The commit index to store with a write that has waited; 0 if it does not fit any more.

    The entries may have been replaced since, by others that wait behind this write. Those may be
    committed: stored with the old entries of the same indexes, the commit index would make a start
    apply entries that were never committed. Test: test_host_full_disk::
    test_a_change_that_was_replaced_while_it_waited_for_room_is_not_stored_as_committed
    """
    log, entries = replica.node.raft.log, message.entries
    is_current = not entries or log.holds(entries[-1].index, term=entries[-1].term)
    return log.committed if is_current else 0


def _put_behind(backlog: deque[Message], message: Message) -> None:
    """Queues a write behind others; answers without a write join those of the last one."""
    if message.entries or message.snapshot is not None or message.term:
        backlog.append(message)
    else:
        _add_new(backlog[-1].responses, message.responses)


def _add_new(waiting: list[Message], responses: list[Message]) -> None:
    """Adds answers that do not wait already: a leader repeats its questions for as long as needed.

    Test: test_host_full_disk::test_what_waits_for_room_does_not_grow_with_time
    """
    waiting += [response for response in responses if response not in waiting]
