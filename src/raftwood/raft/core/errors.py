"""Errors that callers of the core handle; each class says when it is raised.

Anything else that the core raises is `InvariantViolated`: the state cannot be trusted any more and
the replica must stop. To go on could break the promises of the replicas that are well.
"""

from raftwood.base.errors import InvalidInput, OutOfRange, ProtocolError, Unavailable


class ProposalDropped(Unavailable):
    """Nothing was appended: no leader is known, a transfer is under way, or a limit is reached.

    So the same proposal can be made again without being applied twice.
    """

    code = "proposal_dropped"


class InvalidChange(InvalidInput):
    """A membership change does not fit the configuration that it is applied to."""

    code = "invalid_membership_change"


class EntryCompacted(OutOfRange):
    """The storage no longer has the entry: a snapshot stands in its place."""

    code = "entry_compacted"


class EntryMissing(OutOfRange):
    """The entry lies beyond the last one that the storage has."""

    code = "entry_missing"


class SnapshotOutOfDate(InvalidInput):
    """The storage holds a newer snapshot than the one that it was given."""

    code = "snapshot_out_of_date"


class SnapshotNotReady(Unavailable):
    """The storage is still making the snapshot; raft asks again later."""

    code = "snapshot_not_ready"


class LocalMessageRefused(ProtocolError):
    """A message that never leaves its node came from outside."""

    code = "local_message_refused"


class UnknownPeer(ProtocolError):
    """A response came from a node that is no member; it may be late, from before a removal."""

    code = "unknown_peer"
