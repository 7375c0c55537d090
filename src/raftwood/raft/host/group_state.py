"""A group's small record in the log: hard state and first membership."""

from typing import Final

import msgspec

from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.raft.core import ConfState, HardState

STATE_VERSION: Final = 1


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """What must survive a crash beside the entries."""

    version: int
    term: int
    vote: int
    commit: int
    voters: tuple[int, ...]
    """The membership that the log begins with; changes are entries of the log."""

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.commit)

    @property
    def configuration(self) -> ConfState:
        return ConfState(voters=self.voters)

    def encoded(self) -> bytes:
        return _encode(self)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GroupState).decode


def first_state(voters: tuple[int, ...]) -> GroupState:
    """The state of a group that has done nothing yet."""
    return GroupState(STATE_VERSION, 0, 0, 0, tuple(sorted(voters)))


def decode_state(group: int, data: bytes) -> GroupState:
    """A stored state; `UnsupportedVersion` for one of a newer version."""
    try:
        fields = msgspec.msgpack.decode(data)
        if isinstance(fields, list) and fields and fields[0] != STATE_VERSION:
            raise UnsupportedVersion(
                f"the state of group {group} is of version {fields[0]}, this program reads "
                f"{STATE_VERSION}: use a newer program"
            )
        return _decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(f"the state of group {group} is none of a raft group") from error
