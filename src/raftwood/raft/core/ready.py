"""What a node wants done: the answer to `RawNode.ready`."""

import msgspec

from raftwood.raft.core.messages import Entry, HardState, Message, Snapshot
from raftwood.raft.core.reads import ReadState
from raftwood.raft.core.roles import Role


class SoftState(msgspec.Struct, frozen=True):
    """Who leads and what this node is: of interest to the host, never stored."""

    lead: int
    role: Role


class Ready(msgspec.Struct):
    """Work for the host, in the order of the fields.

    With asynchronous storage writes only `messages`, `soft_state` and `read_states` ask for
    something: the messages to the storage threads hold the rest, which is here to look at.
    """

    soft_state: SoftState | None
    """Set if it changed."""
    hard_state: HardState | None
    """Set if it changed: to be stored together with the entries, before the messages go."""
    read_states: list[ReadState]
    entries: list[Entry]
    """To be stored, over whatever stands at and after the first of them."""
    snapshot: Snapshot | None
    """To be stored and restored before anything is applied; it replaces the log."""
    committed_entries: list[Entry]
    """To be applied, in order."""
    messages: list[Message]
    """To be sent after the above is durable."""
    must_sync: bool
    """Whether entries, term or vote are to be synced; a snapshot always is, by the host's care."""
