"""One client's session: its user, its dialect, its transaction, and where its keys are."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded
from raftwood.zeppelin.commands.command import CLUSTER_DOWN, NOT_SERVED, RedisCommand, RedisError
from raftwood.zeppelin.model import PartitionState, Topology, User
from raftwood.zeppelin.node.checkpoints import PartitionCheckpoints
from raftwood.zeppelin.node.view import NodeView, PartitionCopy
from raftwood.zeppelin.records import Acks, KeyWrite
from raftwood.zeppelin.resp import RESP2, Dialect
from raftwood.zeppelin.slots import place_of_slot

CURSORS_MAX: Final = 10_000


class ScanPlace(msgspec.Struct, frozen=True):
    """A scan's place: behind a key of the partition that has a slot; lower slots are done.

    By the slot the place stays valid when partitions split meanwhile.
    """

    table: str
    slot: int
    after: bytes | None = None


class ScanCursors:
    """The latest cursors; a scan that rests for long may have to begin anew."""

    def __init__(self, first: int) -> None:
        # Not from 1: an old cursor from before a restart must not match a new one.
        self._next = first
        self._places: dict[int, ScanPlace] = {}

    def add(self, place: ScanPlace) -> int:
        number = self._next
        self._next += 1
        self._places[number] = place
        if len(self._places) > CURSORS_MAX:
            del self._places[next(iter(self._places))]
        return number

    def find(self, number: int, *, table: str) -> ScanPlace:
        if number == 0:
            return ScanPlace(table, 0)
        place = self._places.get(number)
        if place is None or place.table != table:
            raise RedisError("ERR invalid cursor: it is not known any more, begin at 0")
        return place


# Requests that wait while their partition is handed over: their bounds, and their waits.

PARKED_MAX: Final = 10_000
PARKED_BYTES_MAX: Final = 64 << 20
"""Bytes of all waiting requests; one request may exceed it."""
RECENT_MAX: Final = 1_000
"""Number of waits kept for the statistics."""
FULL: Final = "TRYAGAIN too many requests wait for a hand-over to another node"


class ParkedRequests:
    """The waiting requests of all clients of a node."""

    def __init__(self) -> None:
        self.count = 0
        """Requests that wait now."""
        self.size = 0
        """Their bytes."""
        self.total = 0
        """Requests that have waited since the node was started."""
        self.longest_s = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT_MAX)
        self.observe: Callable[[float], None] = lambda _: None
        """Called with each wait when it is over."""

    @contextmanager
    def parked(self, request: list[bytes]) -> Iterator[None]:
        """Counts a request as waiting; raises `RedisError` if too many wait."""
        if self.count >= PARKED_MAX or self.size > PARKED_BYTES_MAX:
            raise RedisError(FULL)
        loop = asyncio.get_running_loop()
        began, size = loop.time(), sum(map(len, request))
        self.count += 1
        self.size += size
        try:
            yield
        finally:
            self.count -= 1
            self.size -= size
            self._note(loop.time() - began)

    def _note(self, waited_s: float) -> None:
        self.total += 1
        self.longest_s = max(self.longest_s, waited_s)
        self._recent.append(waited_s)
        self.observe(waited_s)

    def quantile_s(self, share: float) -> float:
        """Returns a quantile of the latest waits; 0 if there were none."""
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


# One client's session: its user, its requests, and where its keys are.
#
# It does no I/O: its connection passes requests to it, and sends its answers.

WATCHED_MAX: Final = 1_000
"""Keys that one client watches at a time."""


HANDED_OVER: Final = "TRYAGAIN the partition is being handed over to another node"


class PartitionFrozen(Exception):
    """The partition's requests have to wait; `refusal` is the answer if that takes too long."""

    def __init__(self, refusal: str = HANDED_OVER) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class SessionHost(Protocol):
    """What the commands of all clients share on a node."""

    environment: Environment
    cursors: ScanCursors
    checkpoints: PartitionCheckpoints | None
    """None: the host has no storage engines to copy."""
    parking: ParkedRequests
    started_ms: int
    command_count: int
    connection_count: int
    port: int

    @property
    def view(self) -> NodeView: ...

    @property
    def sessions(self) -> Iterable["KvSession"]: ...

    async def verified(self, name: str, password: bytes) -> User | None:
        """Returns the user if the password is right; takes its time."""
        ...


class Transaction(msgspec.Struct):
    """The commands between MULTI and EXEC."""

    commands: list[tuple[RedisCommand, list[bytes]]] = []
    slot: int = -1
    """Slot of all keys; -1 before the first."""
    size: int = 0
    is_broken: bool = False
    """A command was refused, so EXEC executes none."""


class Watch(msgspec.Struct, frozen=True):
    """A key as it was when its watch began."""

    copy: PartitionCopy
    epoch: int
    key: bytes
    expires_ms: int


class KvSession:
    """A node's state of one client."""

    def __init__(self, host: SessionHost, number: int) -> None:
        self.host = host
        self.number = number
        self.address = ""
        self.since_ms = host.environment.clock.wall_ns() // 1_000_000
        self.name = self.library = self.library_version = ""
        self.last_command = ""
        self.dialect: Dialect = RESP2
        self.user: User | None = None
        self.is_reading_behind = False
        """The client sent READONLY: slaves may answer it."""
        self.is_closing = False
        self.transaction: Transaction | None = None
        self.origin: tuple[bytes, int] | None = None
        """The name of the next command (ONCE), which identifies a repetition."""
        self.watches: list[Watch] = []
        self.is_touched = False
        """A watched key has changed."""
        self.waits: list[tuple[Acks, int, bool]] = []
        """What the last answer has to wait for; the flag marks waits of reads."""
        self.written: dict[PartitionCopy, int] = {}
        """The last write to each partition."""
        self.copies: Sequence[PartitionCopy | None] = ()
        self.now_ms = 0
        self._epoch: int | None = None

    @property
    def topology(self) -> Topology:
        return self.host.view.topology

    def begin_turn(self) -> None:
        """Reads the clock and the topology, and checks that the user still exists."""
        host = self.host
        self.now_ms = host.environment.clock.wall_ns() // 1_000_000
        user = self.user
        if user is None:
            return
        topology = host.view.topology
        if topology.epoch != self._epoch:
            self._epoch = topology.epoch
            now = topology.users.get(user.name)
            is_same = now is not None and (now.table, now.password_hash) == (
                user.table,
                user.password_hash,
            )
            self.log_in(now if is_same else None)
        self.copies = host.view.copies(user.table) if self.user is not None else ()

    def log_in(self, user: User | None) -> None:
        if user is None or self.user is None or user.table != self.user.table:
            self.unwatch()
            self.transaction = None
            self.written.clear()
        self.user = user
        self.copies = () if user is None else self.host.view.copies(user.table)

    def check_may_write(self, command: str) -> None:
        user = self.user
        if user is not None and not user.may_write:
            raise RedisError(
                f"NOPERM User {user.name} has no permissions to run the '{command}' command"
            )

    def copy_of(self, slot: int, *, is_write: bool) -> PartitionCopy:
        """Returns the copy that may serve a slot; else raises the redirection, or
        `PartitionFrozen`.
        """
        copies = self.copies
        copy = copies[place_of_slot(slot, len(copies))] if copies else None
        if copy is not None:
            if copy.is_serving:
                return copy
            if copy.may_read_behind and self.is_reading_behind and not is_write:
                return copy
            if copy.is_leading:
                raise PartitionFrozen
        raise RedisError(self.elsewhere(slot))

    def elsewhere(self, slot: int) -> str:
        """Returns the refusal for a slot that this node does not serve."""
        view = self.host.view
        topology = view.topology
        table = None if self.user is None else topology.tables.get(self.user.table)
        if table is None:
            return NOT_SERVED
        known = table.partitions[table.partition_of_slot(slot)]
        node = None if known.master is None else topology.nodes.get(known.master)
        if node is None:
            return NOT_SERVED
        if known.master == view.node_id:
            if view.has_lease:
                # This node is becoming master, or is about to learn who is.
                raise PartitionFrozen(CLUSTER_DOWN)
            # Redis answers so too if a master cannot know that it still is the only one.
            return CLUSTER_DOWN
        if known.state is PartitionState.STUCK and known.target == view.node_id:
            # The node that redirected the client here already knows that the hand-over is over.
            raise PartitionFrozen
        return f"MOVED {slot} {node.addresses.data}"

    def commit(
        self, copy: PartitionCopy, writes: tuple[KeyWrite, ...], *, flushes: bool = False
    ) -> None:
        try:
            sequence = copy.commit(writes, flushes=flushes, origin=self.origin)
        except Overloaded as refusal:
            # Nothing was done: the client gets its answer when the disk has caught up.
            raise PartitionFrozen(f"TRYAGAIN {refusal.message}") from refusal
        self.expect(copy, sequence)

    def sequence_done(self, copy: PartitionCopy) -> int | None:
        """Returns the record's sequence if the partition has executed the request before; the
        answer waits for that record as for a new one.
        """
        if self.origin is None:
            return None
        sequence = copy.store.sequence_of(*self.origin)
        if sequence is not None:
            self.expect(copy, sequence)
        return sequence

    def expect(self, copy: PartitionCopy, sequence: int) -> None:
        """Lets the answer wait until a record is done."""
        self.written[copy] = sequence
        if not copy.acks.is_immediate:
            self.waits.append((copy.acks, sequence, False))

    def expect_read(self, copy: PartitionCopy, sequence: int) -> None:
        """Lets an answer that depends on a record wait until the record is done."""
        if copy.is_undone(sequence):
            self.waits.append((copy.acks, sequence, True))

    def touched(self) -> None:
        self.is_touched = True

    def watch(self, copy: PartitionCopy, key: bytes) -> None:
        if len(self.watches) >= WATCHED_MAX:
            raise RedisError(f"ERR {WATCHED_MAX} keys are watched already: UNWATCH first")
        value = copy.store.get(key, now_ms=self.now_ms)
        expires_ms = 0 if value is None else value.expires_ms
        copy.watched.setdefault(key, {})[self.touched] = None
        self.watches.append(Watch(copy, copy.epoch, key, expires_ms))

    def unwatch(self) -> None:
        for watch in self.watches:
            watching = watch.copy.watched.get(watch.key, {})
            watching.pop(self.touched, None)
            if not watching:
                watch.copy.watched.pop(watch.key, None)
        self.watches.clear()
        self.is_touched = False

    def may_execute(self) -> bool:
        """Whether all watched keys are unchanged."""
        return not self.is_touched and not any(
            watch.epoch != watch.copy.epoch
            or 0 < watch.expires_ms <= self.now_ms
            or all(copy is not watch.copy for copy in self.copies)
            for watch in self.watches
        )

    def reset(self) -> None:
        """Resets the session to a new connection's state."""
        self.log_in(None)
        self.dialect = RESP2
        self.is_reading_behind = False
        self.name = ""
