"""Raft as a state machine without I/O, clock or randomness; the shape is that of etcd's RawNode.

A host makes a `RawNode` over a `Storage` and then, for ever:

1. Puts in what happened: `tick` at a steady pace, `step` for each message of a peer, `propose`,
   `propose_change`, `read_index` and the other calls for its own wishes.
2. Asks `has_ready` and takes a `Ready`.
3. **Persists**: a snapshot if there is one, then the entries over whatever stands from the first of
   them on, then the hard state; and syncs if `must_sync` says so or a snapshot is present. First of
   all, because a vote or an acknowledgement that is forgotten in a crash can elect two leaders or
   lose what was committed (Raft, figure 2).
4. **Sends** the messages. Only a leader's appends and heartbeats could go before the sync; all else
   promises durability. A message that cannot be delivered may be dropped; `report_unreachable`
   tells of it. Each SNAPSHOT message is reported by `report_snapshot`, sent or failed: until then,
   or until the follower acknowledges it, nothing else is sent there.
5. **Applies**: restores the snapshot, then applies the committed entries in order. For an entry of
   kind CHANGE_V1 or CHANGE_V2 it calls `apply_change(entry)` and keeps the answer, which is part of
   every snapshot from then on. An entry with an empty payload changes nothing.
   Applying last is no matter of safety, for the entries are committed; but it may be slow, and the
   peers need not wait for it.
6. Calls `advance`, and only then `ready` again: the node counts its own vote and its own append now
   because they are durable now.
7. Serves each `ReadState` once it has applied up to its index.

**Asynchronous storage writes** (`async_storage_writes`) leave out steps 3, 5 and 6: a `Ready` then
has messages to `APPEND_THREAD` (entries, snapshot, and term, vote and commit if the hard state has
changed) and to `APPLY_THREAD` (entries). Each thread works through its messages in order and, when
one is durable or applied, delivers its `responses`: those for the node itself by `step`, the others
to the peers. Votes and acknowledgements are such responses, so that they wait for the sync, while
the leader's appends are plain messages and leave at once (dissertation, section 10.2.1). `ready`
may be called at any time; the sync of one message never holds up the next. A message without
responses need not be synced. A snapshot comes to the append thread and may overtake entries that
the apply thread still has to do: it skips those, and answers all the same. A response that is lost
in a crash is no loss.

On a restart make the `RawNode` anew with `applied` set to what the state machine holds; committed
entries after it come again. A storage that has lost what it promised must not be started under its
old id.

Start reading at `raw_node`, then `raft`.

Comments beside a rule say which text has it, which failure it prevents, and which test shows that.
"Raft" is Ongaro and Ousterhout's extended paper, "dissertation" is Ongaro's, and decision 0005
lists where we differ from etcd. A `.txt` is a script in `tests/raft_scripts`; a planted bug, by its
name in quotes, is in `tests/kits/raft/model/mutants.py`; other tests are below `tests/unit/raft`.
"""

from raftwood.raft.core.errors import (
    EntryCompacted,
    EntryMissing,
    InvalidChange,
    LocalMessageRefused,
    ProposalDropped,
    SnapshotNotReady,
    SnapshotOutOfDate,
    UnknownPeer,
)
from raftwood.raft.core.membership import (
    LEAVE_JOINT,
    Change,
    ChangeStep,
    ChangeV1,
    ChangeV2,
    StepKind,
    Transition,
    change_entry,
    change_of,
)
from raftwood.raft.core.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    IS_CHANGE,
    NOBODY,
    UNLIMITED,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    Role,
    Snapshot,
    is_storage_thread,
)
from raftwood.raft.core.raw_node import FollowerStatus, RawNode, Ready, SoftState, Status
from raftwood.raft.core.reads import ReadState
from raftwood.raft.core.settings import ElectionJitter, RaftSettings, ReadMode
from raftwood.raft.core.storage import MemoryStorage, Storage
from raftwood.raft.core.tracker import ProgressState

__all__ = [
    "APPEND_THREAD",
    "APPLY_THREAD",
    "IS_CHANGE",
    "LEAVE_JOINT",
    "NOBODY",
    "UNLIMITED",
    "Change",
    "ChangeStep",
    "ChangeV1",
    "ChangeV2",
    "ConfState",
    "ElectionJitter",
    "Entry",
    "EntryCompacted",
    "EntryKind",
    "EntryMissing",
    "FollowerStatus",
    "HardState",
    "InvalidChange",
    "LocalMessageRefused",
    "MemoryStorage",
    "Message",
    "MessageKind",
    "ProgressState",
    "ProposalDropped",
    "RaftSettings",
    "RawNode",
    "ReadMode",
    "ReadState",
    "Ready",
    "Role",
    "Snapshot",
    "SnapshotNotReady",
    "SnapshotOutOfDate",
    "SoftState",
    "Status",
    "StepKind",
    "Storage",
    "Transition",
    "UnknownPeer",
    "change_entry",
    "change_of",
    "is_storage_thread",
]
