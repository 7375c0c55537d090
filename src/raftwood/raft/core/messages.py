"""Roles, entries, snapshots, hard state and messages of raft nodes.

Everything here is plain data. Entries and messages are mutable and slotted because they are made by
the million; their receivers treat them as read-only, because one list of entries goes into the
messages to several followers. An entry's payload is opaque to raft.
"""

from enum import Enum, IntEnum
from typing import Final

import msgspec


class Role(Enum):
    """Raft, figure 4, and the pre-candidate of the dissertation's section 9.6."""

    FOLLOWER = "StateFollower"
    CANDIDATE = "StateCandidate"
    LEADER = "StateLeader"
    PRECANDIDATE = "StatePreCandidate"


FOLLOWER = Role.FOLLOWER
CANDIDATE = Role.CANDIDATE
LEADER = Role.LEADER
PRECANDIDATE = Role.PRECANDIDATE


NOBODY: Final = 0
"""The id of no node: no leader, no vote, no transfer target."""
APPEND_THREAD: Final = (1 << 64) - 1
"""Target of messages for the local log writer, where storage is written asynchronously."""
APPLY_THREAD: Final = (1 << 64) - 2
"""Target of messages for the local state machine, where storage is written asynchronously."""
UNLIMITED: Final = (1 << 63) - 1

ENTRY_OVERHEAD_BYTES: Final = 8
"""Counted for each entry beside its payload, because empty entries take room too."""


class EntryKind(IntEnum):
    """The kind of an entry's payload."""

    NORMAL = 0
    CHANGE_V1 = 1
    """One membership change, as nodes without joint consensus understand it."""
    CHANGE_V2 = 2
    CONTROL = 3
    """The host's own: the core treats it as NORMAL."""


IS_CHANGE: Final = (False, True, True, False)
"""Kinds that change the membership, to index by kind."""


class MessageKind(IntEnum):
    """The kinds of messages; some never leave their node."""

    HUP = 0
    """Local: stand for election."""
    PROPOSE = 1
    APPEND = 2
    APPEND_RESPONSE = 3
    VOTE = 4
    VOTE_RESPONSE = 5
    SNAPSHOT = 6
    HEARTBEAT = 7
    HEARTBEAT_RESPONSE = 8
    UNREACHABLE = 9
    """Local: the transport could not deliver to a peer."""
    SNAPSHOT_STATUS = 10
    """Local: the transport finished or failed to send a snapshot."""
    TRANSFER_LEADER = 11
    TIMEOUT_NOW = 12
    READ_INDEX = 13
    READ_INDEX_RESPONSE = 14
    PREVOTE = 15
    PREVOTE_RESPONSE = 16
    STORAGE_APPEND = 17
    STORAGE_APPEND_RESPONSE = 18
    STORAGE_APPLY = 19
    STORAGE_APPLY_RESPONSE = 20
    FORGET_LEADER = 21


class Entry(msgspec.Struct, gc=False):
    """One slot of the log."""

    term: int = 0
    index: int = 0
    kind: EntryKind = EntryKind.NORMAL
    payload: bytes = b""


class ConfState(msgspec.Struct, frozen=True):
    """A membership as it is stored; ids in ascending order."""

    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    """The other half of a joint configuration; empty outside one."""
    learners_next: tuple[int, ...] = ()
    """Outgoing voters that become learners when the joint configuration is left."""
    auto_leave: bool = False

    def normalized(self) -> "ConfState":
        """The same membership with its ids in order, to compare two of them."""
        return ConfState(
            tuple(sorted(self.voters)),
            tuple(sorted(self.learners)),
            tuple(sorted(self.voters_outgoing)),
            tuple(sorted(self.learners_next)),
            self.auto_leave,
        )


class Snapshot(msgspec.Struct, frozen=True):
    """The applied state up to an index, with the membership that was in force there.

    The membership belongs to it because the entries that made it are gone (Raft, section 7).
    Without the last change a node would count by majorities that no longer hold. Planted bug:
    "snapshot without the last change"
    """

    index: int = 0
    term: int = 0
    configuration: ConfState = ConfState()
    data: bytes = b""


class HardState(msgspec.Struct, frozen=True):
    """State that must survive a crash beside the log (Raft, figure 2: persistent state).

    Term and vote, or a node votes twice in a term: planted bugs "term not durable" and "vote not
    durable". The commit index only saves time at a restart, and may be older than it was.
    """

    term: int = 0
    vote: int = NOBODY
    commit: int = 0


EMPTY_HARD_STATE: Final = HardState()


class Message(msgspec.Struct):
    """One message between nodes, or between a node and its own storage threads."""

    kind: MessageKind
    target: int = NOBODY
    source: int = NOBODY
    term: int = 0
    log_term: int = 0
    """Append: term of the entry before the first. Vote: term of the candidate's last entry."""
    index: int = 0
    entries: list[Entry] = []
    commit: int = 0
    rejected: bool = False
    reject_hint: int = 0
    vote: int = NOBODY
    snapshot: Snapshot | None = None
    context: bytes = b""
    """Names a read, or says that an election was ordered by a leadership transfer."""
    responses: list["Message"] = []
    """Storage messages: to be delivered once the work is durable or applied."""


NO_ENTRIES: Final[list[Entry]] = []
"""Shared and never changed."""

_K = MessageKind


def _table(*kinds: MessageKind) -> tuple[bool, ...]:
    """A table to index by kind: enum members are slow to hash and quick as indexes."""
    return tuple(kind in kinds for kind in MessageKind)


IS_LOCAL: Final = _table(
    _K.HUP,
    _K.UNREACHABLE,
    _K.SNAPSHOT_STATUS,
    _K.STORAGE_APPEND,
    _K.STORAGE_APPEND_RESPONSE,
    _K.STORAGE_APPLY,
    _K.STORAGE_APPLY_RESPONSE,
)
"""Kinds that must never arrive from another node."""
IS_RESPONSE: Final = _table(
    _K.APPEND_RESPONSE,
    _K.VOTE_RESPONSE,
    _K.HEARTBEAT_RESPONSE,
    _K.UNREACHABLE,
    _K.READ_INDEX_RESPONSE,
    _K.PREVOTE_RESPONSE,
    _K.STORAGE_APPEND_RESPONSE,
    _K.STORAGE_APPLY_RESPONSE,
)
IS_VOTE: Final = _table(_K.VOTE, _K.VOTE_RESPONSE, _K.PREVOTE, _K.PREVOTE_RESPONSE)
NEEDS_SYNC: Final = _table(_K.APPEND_RESPONSE, _K.VOTE_RESPONSE, _K.PREVOTE_RESPONSE)
"""Kinds that promise durability: they wait until all writes before them are synced.

A pre-vote promises nothing and could leave at once; it waits with the others, as in etcd.
"""
FROM_LEADER: Final = _table(_K.APPEND, _K.HEARTBEAT, _K.SNAPSHOT)


def is_storage_thread(node: int) -> bool:
    """Whether an id is that of a local storage thread and not of a node."""
    return node >= APPLY_THREAD


def entries_bytes(entries: list[Entry]) -> int:
    """The size of entries as limits on messages and on applying count it."""
    size = ENTRY_OVERHEAD_BYTES * len(entries)
    for entry in entries:
        size += len(entry.payload)
    return size


def payload_bytes(entries: list[Entry]) -> int:
    """The size of the payloads alone, as limits on what is in flight count it."""
    size = 0
    for entry in entries:
        size += len(entry.payload)
    return size


def limit_entries(entries: list[Entry], bytes_max: int) -> list[Entry]:
    """The longest prefix within a size; at least one entry, or nothing would ever move."""
    if bytes_max >= UNLIMITED:
        return entries
    # It stops at the first that does not fit. A follower that lags is served piece by piece, and to
    # measure all that is left each time would cost the square of its backlog.
    room = bytes_max
    for position, entry in enumerate(entries):
        room -= ENTRY_OVERHEAD_BYTES + len(entry.payload)
        if room < 0:
            return entries[: position or 1]
    return entries
