"""The nodes of an interaction script: their storage, work queues, and the network between them."""

from collections.abc import Iterator
from contextlib import contextmanager

from raftwood.base.errors import InvariantViolated, RaftwoodError
from raftwood.raft.core import (
    IS_CHANGE,
    EntryCompacted,
    EntryMissing,
    HardState,
    LocalMessageRefused,
    MemoryStorage,
    Message,
    MessageKind,
    ProposalDropped,
    RaftSettings,
    RawNode,
    Ready,
    Snapshot,
    SnapshotNotReady,
    SnapshotOutOfDate,
    UnknownPeer,
    change_of,
    is_storage_thread,
)
from raftwood.raft.core.messages import Entry
from tests.kits.raft.scripts import describing
from tests.kits.raft.scripts.describing import message_text

ERROR_TEXTS: dict[type[RaftwoodError], str] = {
    ProposalDropped: "raft proposal dropped",
    LocalMessageRefused: "raft: cannot step raft local message",
    UnknownPeer: "raft: cannot step as peer not found",
    EntryCompacted: "requested index is unavailable due to compaction",
    EntryMissing: "requested entry at index is unavailable",
    SnapshotOutOfDate: "requested index is older than the existing snapshot",
    SnapshotNotReady: "snapshot is temporarily unavailable",
}


def error_text(error: RaftwoodError) -> str:
    return ERROR_TEXTS.get(type(error), error.message)


class Output:
    """What a command prints; nothing while quiet."""

    def __init__(self) -> None:
        self.text = ""
        self.quiet = False

    def write(self, text: str) -> None:
        if not self.quiet:
            self.text += text

    @contextmanager
    def indented(self) -> Iterator[None]:
        before, self.text = self.text, ""
        try:
            yield
        finally:
            inner = "".join(f"  {line}\n" for line in self.text.splitlines())
            self.text = before + inner


class ScriptStorage(MemoryStorage):
    """Hands out the latest applied state whenever a snapshot is asked for."""

    def __init__(self, history: list[Snapshot]) -> None:
        super().__init__()
        self.history = history

    def snapshot(self) -> Snapshot:
        return self.history[-1]


class Node:
    """One node with its storage, and its storage threads' queues."""

    def __init__(self, settings: RaftSettings, bootstrap: Snapshot) -> None:
        self.settings = settings
        self.history = [bootstrap]
        """A snapshot after each applied entry: the state machine joins all payloads."""
        self.storage = ScriptStorage(self.history)
        if bootstrap.index:
            self.storage.apply_snapshot(bootstrap)
        self.raw = RawNode(settings, self.storage)
        self.append_work: list[Message] = []
        self.apply_work: list[Message] = []

    def append(
        self, state: HardState | None, entries: list[Entry], snapshot: Snapshot | None
    ) -> None:
        if state is not None:
            self.storage.hard_state = state
        if snapshot is not None:
            if entries:
                raise InvariantViolated("can't apply snapshot and entries at the same time")
            self.storage.apply_snapshot(snapshot)
            self.history.append(snapshot)
        else:
            self.storage.append(entries)

    def apply(self, entries: list[Entry]) -> None:
        for entry in entries:
            last = self.history[-1]
            configuration, update = last.configuration, entry.payload
            if IS_CHANGE[entry.kind]:
                change = change_of(entry)
                configuration, update = self.raw.apply_change(entry), change.context
            self.history.append(
                Snapshot(entry.index, entry.term, configuration, last.data + update)
            )


class Environment:
    """All nodes, and the messages that were sent and not delivered yet."""

    def __init__(self) -> None:
        self.output = Output()
        self.nodes: list[Node] = []
        self.messages: list[Message] = []

    def node(self, identity: int) -> Node:
        return self.nodes[identity - 1]

    def process_ready(self, identity: int) -> None:
        node = self.node(identity)
        ready = node.raw.ready()
        self.output.write(describing.ready_text(ready))
        if node.settings.async_storage_writes:
            self._queue_storage_work(node, ready)
            return
        node.append(ready.hard_state, ready.entries, ready.snapshot)
        node.apply(ready.committed_entries)
        self.messages.extend(ready.messages)
        node.raw.advance()

    def _queue_storage_work(self, node: Node, ready: Ready) -> None:
        for message in ready.messages:
            if message.kind is MessageKind.STORAGE_APPEND:
                node.append_work.append(message)
            elif message.kind is MessageKind.STORAGE_APPLY:
                node.apply_work.append(message)
            else:
                self.messages.append(message)

    def process_append_thread(self, identity: int) -> None:
        node = self.node(identity)
        if not node.append_work:
            self.output.write("no append work to perform")
            return
        message = node.append_work.pop(0)
        responses = self._show_work(message)
        state = HardState(message.term, message.vote, message.commit)
        node.append(state if state != HardState() else None, message.entries, message.snapshot)
        self._show_responses(responses)

    def process_apply_thread(self, identity: int) -> None:
        node = self.node(identity)
        if not node.apply_work:
            self.output.write("no apply work to perform")
            return
        message = node.apply_work.pop(0)
        responses = self._show_work(message)
        node.apply(message.entries)
        self._show_responses(responses)

    def _show_work(self, message: Message) -> list[Message]:
        responses, message.responses = message.responses, []
        self.output.write(f"Processing:\n{message_text(message)}\n")
        return responses

    def _show_responses(self, responses: list[Message]) -> None:
        self.output.write("Responses:\n")
        for response in responses:
            self.output.write(f"{message_text(response)}\n")
        self.messages.extend(responses)

    def waiting(self, target: int, kind: MessageKind | None, *, drop: bool) -> list[Message]:
        """Messages to a node; those between a node and its own storage are never dropped."""
        return [
            message
            for message in self.messages
            if message.target == target
            and (kind is None or message.kind is kind)
            and not (drop and _stays_local(message))
        ]

    def deliver(self, target: int, kind: MessageKind | None = None, *, drop: bool = False) -> int:
        chosen = self.waiting(target, kind, drop=drop)
        gone = {id(message) for message in chosen}
        self.messages = [message for message in self.messages if id(message) not in gone]
        for message in chosen:
            self.output.write(f"{'dropped: ' if drop else ''}{message_text(message)}\n")
            if drop:
                continue
            try:
                self.node(target).raw.step(message)
            except (ProposalDropped, LocalMessageRefused, UnknownPeer) as error:
                self.output.write(f"{error_text(error)}\n")
        return len(chosen)

    def stabilize(self, identities: list[int]) -> None:
        """Do all there is to do for some nodes, until nothing is left."""
        identities = identities or [index + 1 for index in range(len(self.nodes))]
        done = False
        while not done:
            done = True
            for identity in identities:
                if self.node(identity).raw.has_ready():
                    done = False
                    self.output.write(f"> {identity} handling Ready\n")
                    with self.output.indented():
                        self.process_ready(identity)
            for identity in identities:
                if self.waiting(identity, None, drop=False):
                    done = False
                    self.output.write(f"> {identity} receiving messages\n")
                    with self.output.indented():
                        self.deliver(identity)
            for identity in identities:
                if self.node(identity).append_work:
                    done = False
                    self.output.write(f"> {identity} processing append thread\n")
                    while self.node(identity).append_work:
                        with self.output.indented():
                            self.process_append_thread(identity)
            for identity in identities:
                if self.node(identity).apply_work:
                    done = False
                    self.output.write(f"> {identity} processing apply thread\n")
                    while self.node(identity).apply_work:
                        with self.output.indented():
                            self.process_apply_thread(identity)


def _stays_local(message: Message) -> bool:
    return (
        message.source == message.target
        or is_storage_thread(message.source)
        or is_storage_thread(message.target)
    )
