"""One node of the model: a `RawNode`, what it has on disk, and its state machine.

The disk is a `MemoryStorage`; a crash forgets everything else. Small methods stand for a host's
duties, so that a mutant can neglect one of them.
"""

from collections import deque
from collections.abc import Callable
from zlib import crc32

from raftwood.raft.core import (
    IS_CHANGE,
    ConfState,
    Entry,
    HardState,
    MemoryStorage,
    Message,
    MessageKind,
    RaftSettings,
    RawNode,
    Role,
    Snapshot,
    UnknownPeer,
)
from tests.kits.raft.model.oracle import Oracle

_STORAGE_APPEND = MessageKind.STORAGE_APPEND
_STORAGE_APPLY = MessageKind.STORAGE_APPLY
_LEADER = Role.LEADER


class Replica:
    """A node that can crash and come back with what it had on disk."""

    def __init__(
        self,
        node: int,
        bootstrap: Snapshot,
        settings: Callable[[int, int], RaftSettings],
        oracle: Oracle,
        send: Callable[[Message], None],
    ) -> None:
        self.node = node
        self.storage = MemoryStorage()
        if bootstrap.index:
            self.storage.apply_snapshot(bootstrap)
        self._synced = HardState()
        self._settings = settings
        self._oracle = oracle
        self._send = send
        self.alive = False
        self.append_work: deque[Message] = deque()
        self.apply_work: deque[Message] = deque()
        self.start()

    def start(self) -> None:
        snapshot = self.storage.snapshot()
        self.applied = snapshot.index
        self.state = int.from_bytes(snapshot.data)
        self.configuration = snapshot.configuration
        self.previous_configuration = snapshot.configuration
        self.seen_commit = snapshot.index
        settings = self._settings(self.node, snapshot.index)
        self._async_writes = settings.async_storage_writes
        self.raw = RawNode(settings, self.storage)
        self.alive = True

    def crash(self, *, lose_unsynced: bool) -> None:
        self.alive = False
        self.append_work.clear()
        self.apply_work.clear()
        if lose_unsynced:
            self.storage.hard_state = self._synced

    # The host's duties

    def pump(self) -> None:
        """Deal with all work there is: persist, send, apply, advance."""
        raw = self.raw
        while raw.has_ready():
            ready = raw.ready()
            for read in ready.read_states:
                self._oracle.read_allowed(self.node, read)
            if self._async_writes:
                self._hand_out(ready.messages)
                continue
            if ready.hard_state is not None or ready.entries or ready.snapshot is not None:
                self.persist(ready.hard_state, ready.entries, ready.snapshot, sync=ready.must_sync)
            send = self._send
            for message in ready.messages:
                send(message)
            if ready.committed_entries:
                self.apply(ready.committed_entries)
            raw.advance()
        self.look()

    def _hand_out(self, messages: list[Message]) -> None:
        for message in messages:
            if message.kind is _STORAGE_APPEND:
                self.take_append(message)
            elif message.kind is _STORAGE_APPLY:
                self.apply_work.append(message)
            else:
                self._send(message)

    def take_append(self, message: Message) -> None:
        self.append_work.append(message)

    def run_append(self) -> None:
        """The append thread does one piece of work and answers."""
        message = self.append_work.popleft()
        state = None
        if message.term or message.commit:
            state = HardState(message.term, message.vote, message.commit)
        self.persist(state, message.entries, message.snapshot, sync=bool(message.responses))
        self.respond(message)

    def run_apply(self) -> None:
        message = self.apply_work.popleft()
        self.apply(message.entries)
        self.respond(message)

    def respond(self, message: Message) -> None:
        for response in message.responses:
            if response.target != self.node:
                self._send(response)
                continue
            try:
                self.raw.step(response)
            except UnknownPeer:
                # It has removed itself meanwhile.
                continue

    def persist(
        self,
        state: HardState | None,
        entries: list[Entry],
        snapshot: Snapshot | None,
        *,
        sync: bool,
    ) -> None:
        storage = self.storage
        if snapshot is not None:
            storage.apply_snapshot(snapshot)
            self._restore(snapshot)
        if entries:
            storage.append(entries)
        if state is not None:
            storage.hard_state = state
        if sync or snapshot is not None:
            self._synced = storage.hard_state

    def _restore(self, snapshot: Snapshot) -> None:
        self.state = int.from_bytes(snapshot.data)
        self.applied = snapshot.index
        self.configuration = self.previous_configuration = snapshot.configuration
        self._oracle.restored(self.node, snapshot)

    def apply(self, entries: list[Entry]) -> None:
        # Before anything else, so that the oracle knows what was committed.
        self.look()
        state = self.state
        for entry in entries:
            if entry.index <= self.applied:
                # A snapshot has overtaken it.
                continue
            state = crc32(entry.payload, state)
            self._oracle.applied(self.node, entry.index, state)
            if IS_CHANGE[entry.kind]:
                self._change(entry)
        self.state = state
        self.applied = max(self.applied, entries[-1].index)

    def _change(self, entry: Entry) -> None:
        self.previous_configuration = self.configuration
        self.configuration = self.raw.apply_change(entry)
        self._oracle.changed(self.node, entry.index, self.configuration)

    def snapshot_configuration(self) -> ConfState:
        return self.configuration

    def compact(self, keep: int) -> None:
        """Take a snapshot of what was applied and forget most of the log before it."""
        storage = self.storage
        if self.applied <= storage.snapshot().index or self.applied > storage.last_index():
            return
        data = self.state.to_bytes(4)
        storage.create_snapshot(self.applied, self.snapshot_configuration(), data)
        if self.applied - keep >= storage.first_index():
            storage.compact(self.applied - keep)

    # Watching

    def look(self) -> None:
        raft = self.raw.raft
        if raft.role is _LEADER:
            self._oracle.saw_leader(raft)
        if raft.log.committed > self.seen_commit:
            self.seen_commit = self._oracle.saw_commit(raft, self.seen_commit)
