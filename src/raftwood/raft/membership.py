"""Members of a group: changes as callers ask for them, and addresses that travel with them."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from raftwood.base.errors import Conflict, InvalidInput
from raftwood.net.identity import split_address
from raftwood.raft.core import (
    ChangeStep,
    ChangeV2,
    ConfState,
    Entry,
    StepKind,
    change_entry,
    change_of,
)
from raftwood.raft.core.membership import LEAVE_JOINT


class MemberAction(StrEnum):
    """What happens to one store."""

    ADD_VOTER = "add-voter"
    """Adds a voter, or makes a voter of a learner."""
    ADD_LEARNER = "add-learner"
    """Adds a learner, or makes a learner of a voter."""
    REMOVE = "remove"


class MemberStep(msgspec.Struct, frozen=True, array_like=True):
    """One store's part in a change; several together go through a joint configuration."""

    action: MemberAction
    store: int
    address: str = ""
    """The address of a store that is added."""


_KINDS = {
    MemberAction.ADD_VOTER: StepKind.ADD_VOTER,
    MemberAction.ADD_LEARNER: StepKind.ADD_LEARNER,
    MemberAction.REMOVE: StepKind.REMOVE,
}
STEPS_MAX = 64
_encode = msgspec.msgpack.Encoder().encode
_decode_addresses = msgspec.msgpack.Decoder(dict[int, str]).decode


def change_of_members(
    steps: Sequence[MemberStep], known: Mapping[int, str], configuration: ConfState
) -> Entry:
    """The entry that carries the steps out; `known` are addresses that need not be given.

    It carries the addresses of all members, because a store that is added knows none of them.
    """
    if not 0 < len(steps) <= STEPS_MAX:
        raise InvalidInput(f"a change has 1 to {STEPS_MAX} steps, not {len(steps)}")
    members = members_of(configuration)
    addresses = {member: known[member] for member in members if member in known}
    for step in steps:
        if step.store <= 0:
            raise InvalidInput(f"{step.store} is no number of a store")
        if step.action is MemberAction.REMOVE:
            addresses.pop(step.store, None)
            continue
        address = step.address or known.get(step.store, "")
        if not address:
            raise InvalidInput(f"give the address of store {step.store}: nobody knows it yet")
        split_address(address)
        addresses[step.store] = address
    changes = tuple(ChangeStep(_KINDS[step.action], step.store) for step in steps)
    return change_entry(ChangeV2(changes, context=_encode(addresses)))


def forced_changes(old: ConfState, voters: Sequence[int], known: Mapping[int, str]) -> list[Entry]:
    """Entries that lead from a membership to the one that an operator named, one step each.

    They count as committed without a vote, so none needs a joint configuration.
    """
    context = _encode({store: known[store] for store in voters if store in known})
    gone = {*old.voters, *old.learners, *old.learners_next} - set(voters)
    steps = [ChangeStep(StepKind.ADD_VOTER, store) for store in voters]
    steps += [ChangeStep(StepKind.REMOVE, store) for store in sorted(gone)]
    changes = [LEAVE_JOINT] if old.voters_outgoing else []
    changes += [ChangeV2((step,), context=context) for step in steps]
    return [change_entry(change) for change in changes]


def addresses_in(entry: Entry) -> dict[int, str]:
    """The addresses that a change's entry carries."""
    context = change_of(entry).context
    return _decode_addresses(context) if context else {}


def members_of(configuration: ConfState) -> list[int]:
    """All stores that take part, in order."""
    return sorted(
        {
            *configuration.voters,
            *configuration.learners,
            *configuration.voters_outgoing,
            *configuration.learners_next,
        }
    )


def checked_result(group: int, result: object) -> ConfState:
    """The membership after a change; `Conflict` if the change was committed as an empty entry."""
    if not isinstance(result, ConfState):
        raise Conflict(
            f"the change does not fit group {group} as it is, or another change is under way: look "
            "at its members, and try again"
        )
    return result
