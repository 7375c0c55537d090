"""One client's session: who it is, what it asked for, and where its keys are.

It does no I/O: its connection gives it requests, and sends what it answers.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded
from raftwood.zeppelin.commands.cursors import Cursors
from raftwood.zeppelin.commands.parking import Parking
from raftwood.zeppelin.commands.refusals import CLUSTER_DOWN, NOT_SERVED, Refused
from raftwood.zeppelin.commands.table import Command
from raftwood.zeppelin.model import PartitionState, Topology, User
from raftwood.zeppelin.node.acks import Acks
from raftwood.zeppelin.node.checkpoints import Checkpoints
from raftwood.zeppelin.node.seams import Write
from raftwood.zeppelin.node.view import NodeView, PartitionCopy
from raftwood.zeppelin.resp.answers import RESP2, Dialect
from raftwood.zeppelin.slots import place_of_slot

WATCHED_MAX: Final = 1_000
"""Keys that one client watches at a time."""


HANDED_OVER: Final = "TRYAGAIN the partition is being handed over to another node"


class Frozen(Exception):
    """The partition's requests have to wait; what is answered where that takes too long."""

    def __init__(self, refusal: str = HANDED_OVER) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class Host(Protocol):
    """What the commands of all clients share on a node."""

    environment: Environment
    cursors: Cursors
    checkpoints: Checkpoints | None
    """None: it has no storage engines to make them of."""
    parking: Parking
    started_ms: int
    command_count: int
    connection_count: int
    port: int

    @property
    def view(self) -> NodeView: ...

    @property
    def sessions(self) -> Iterable["Session"]: ...

    async def verified(self, name: str, password: bytes) -> User | None:
        """The user, if that is the password; takes its time."""
        ...


class Transaction(msgspec.Struct):
    """What stands between MULTI and EXEC."""

    commands: list[tuple[Command, list[bytes]]] = []
    slot: int = -1
    """Of all keys; -1 before the first."""
    size: int = 0
    is_broken: bool = False
    """A command was refused: none will be executed."""


class Watch(msgspec.Struct, frozen=True):
    """A key as it was when its watch began."""

    copy: PartitionCopy
    epoch: int
    key: bytes
    expires_ms: int


class Session:
    """What a node knows of one client."""

    def __init__(self, host: Host, number: int) -> None:
        self.host = host
        self.number = number
        self.address = ""
        self.since_ms = host.environment.clock.wall_ns() // 1_000_000
        self.name = self.library = self.library_version = ""
        self.last_command = ""
        self.dialect: Dialect = RESP2
        self.user: User | None = None
        self.is_reading_behind = False
        """The client said READONLY: slaves may answer it."""
        self.is_closing = False
        self.transaction: Transaction | None = None
        self.origin: tuple[bytes, int] | None = None
        """The name of the next command, by which it is known again."""
        self.watches: list[Watch] = []
        self.is_touched = False
        """A watched key has changed."""
        self.waits: list[tuple[Acks, int, bool]] = []
        """What the last answer has to wait for, and whether it does as it tells what was read."""
        self.written: dict[PartitionCopy, int] = {}
        """The last write to each partition."""
        self.copies: Sequence[PartitionCopy | None] = ()
        self.now_ms = 0
        self._epoch: int | None = None

    @property
    def topology(self) -> Topology:
        return self.host.view.topology

    def begin_turn(self) -> None:
        """Look at the clock and the node, and whether the user still is one."""
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
            raise Refused(
                f"NOPERM User {user.name} has no permissions to run the '{command}' command"
            )

    def copy_of(self, slot: int, *, is_write: bool) -> PartitionCopy:
        """The copy that may serve a slot; else the client is told who does, or waits for that."""
        copies = self.copies
        copy = copies[place_of_slot(slot, len(copies))] if copies else None
        if copy is not None:
            if copy.is_serving:
                return copy
            if copy.may_read_behind and self.is_reading_behind and not is_write:
                return copy
            if copy.is_leading:
                raise Frozen
        raise Refused(self.elsewhere(slot))

    def elsewhere(self, slot: int) -> str:
        """What a client is told who wants a slot that is not served here."""
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
                # It begins to be the master, or is about to hear who is.
                raise Frozen(CLUSTER_DOWN)
            # Redis says so as well where a master can't know that it still is the only one.
            return CLUSTER_DOWN
        if known.state is PartitionState.STUCK and known.target == view.node_id:
            # Whoever sent the client here knows already that the hand-over is over.
            raise Frozen
        return f"MOVED {slot} {node.addresses.data}"

    def commit(
        self, copy: PartitionCopy, writes: tuple[Write, ...], *, flushes: bool = False
    ) -> None:
        try:
            sequence = copy.commit(writes, flushes=flushes, origin=self.origin)
        except Overloaded as refusal:
            # Nothing was done: the client gets its answer when the disk has caught up.
            raise Frozen(f"TRYAGAIN {refusal.message}") from refusal
        self.expect(copy, sequence)

    def sequence_done(self, copy: PartitionCopy) -> int | None:
        """Of the record, where a partition has carried the request out before; that is waited for
        as if it were new.
        """
        if self.origin is None:
            return None
        sequence = copy.store.sequence_of(*self.origin)
        if sequence is not None:
            self.expect(copy, sequence)
        return sequence

    def expect(self, copy: PartitionCopy, sequence: int) -> None:
        """The answer goes out when a record is done."""
        self.written[copy] = sequence
        if not copy.acks.is_immediate:
            self.waits.append((copy.acks, sequence, False))

    def expect_read(self, copy: PartitionCopy, sequence: int) -> None:
        """The answer tells what depends on a record, and goes out when that one is done."""
        if copy.is_undone(sequence):
            self.waits.append((copy.acks, sequence, True))

    def touched(self) -> None:
        self.is_touched = True

    def watch(self, copy: PartitionCopy, key: bytes) -> None:
        if len(self.watches) >= WATCHED_MAX:
            raise Refused(f"ERR {WATCHED_MAX} keys are watched already: UNWATCH first")
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
        """Whether all that is watched is as it was."""
        return not self.is_touched and not any(
            watch.epoch != watch.copy.epoch
            or 0 < watch.expires_ms <= self.now_ms
            or all(copy is not watch.copy for copy in self.copies)
            for watch in self.watches
        )

    def reset(self) -> None:
        """As a connection that has just been made."""
        self.log_in(None)
        self.dialect = RESP2
        self.is_reading_behind = False
        self.name = ""
