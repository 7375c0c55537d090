"""Membership changes as they are proposed and stored in the log.

A `ChangeV1` adds, promotes, demotes or removes one node. A `ChangeV2` holds several steps; more
than one of them, or an explicit transition, goes through a joint configuration (Raft dissertation,
section 4.3). An empty `ChangeV2` leaves a joint configuration, and its payload is empty.
"""

from enum import IntEnum

import msgspec

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core.messages import Entry, EntryKind


class StepKind(IntEnum):
    """What one step does to one node."""

    ADD_VOTER = 0
    REMOVE = 1
    UPDATE = 2
    """Changes nothing in raft; carries the caller's context through the log."""
    ADD_LEARNER = 3


class Transition(IntEnum):
    """How a `ChangeV2` takes effect."""

    AUTO = 0
    """Directly if one step is safe by itself, else joint and left by the leader."""
    JOINT_IMPLICIT = 1
    """Joint in any case, and left by the leader as soon as it is applied."""
    JOINT_EXPLICIT = 2
    """Joint in any case, until an empty change is proposed."""


class ChangeStep(msgspec.Struct, frozen=True):
    """One node's part in a change."""

    kind: StepKind
    node: int


class ChangeV2(msgspec.Struct, frozen=True):
    """Several steps that take effect together."""

    steps: tuple[ChangeStep, ...] = ()
    transition: Transition = Transition.AUTO
    context: bytes = b""

    @property
    def leaves_joint(self) -> bool:
        return not self.steps and self.transition is Transition.AUTO

    @property
    def enters_joint(self) -> bool:
        return self.transition is not Transition.AUTO or len(self.steps) > 1

    @property
    def auto_leave(self) -> bool:
        return self.transition is not Transition.JOINT_EXPLICIT

    def as_v2(self) -> "ChangeV2":
        return self


class ChangeV1(msgspec.Struct, frozen=True):
    """One step, never joint."""

    step: ChangeStep
    context: bytes = b""

    def as_v2(self) -> ChangeV2:
        return ChangeV2((self.step,), context=self.context)


Change = ChangeV1 | ChangeV2

LEAVE_JOINT = ChangeV2()

_encoder = msgspec.msgpack.Encoder()
_decoder_v1 = msgspec.msgpack.Decoder(ChangeV1)
_decoder_v2 = msgspec.msgpack.Decoder(ChangeV2)


def change_entry(change: Change) -> Entry:
    """The entry that proposes a change."""
    if isinstance(change, ChangeV1):
        return Entry(kind=EntryKind.CHANGE_V1, payload=_encoder.encode(change))
    payload = b"" if change == LEAVE_JOINT else _encoder.encode(change)
    return Entry(kind=EntryKind.CHANGE_V2, payload=payload)


def change_of(entry: Entry) -> Change:
    """The change that an entry holds; the entry must be of one of the two kinds."""
    try:
        if entry.kind is EntryKind.CHANGE_V1:
            return _decoder_v1.decode(entry.payload)
        return _decoder_v2.decode(entry.payload) if entry.payload else LEAVE_JOINT
    except msgspec.DecodeError as error:
        # Only what this module encoded is proposed as a change, on every node.
        raise InvariantViolated(f"entry {entry.index} holds no membership change") from error
