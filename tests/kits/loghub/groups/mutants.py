"""Bugs planted on purpose: each must be caught, or the checks prove nothing."""

from collections.abc import Collection
from functools import partial

from raftwood.base.seams import Compare, KeyOperation, TransactionOutcome
from raftwood.loghub.server.consumer_group_rules import Tenures
from raftwood.loghub.server.consumer_groups import (
    ConsumerGroups,
    ConsumerGroupState,
    GroupMembers,
    GroupName,
)
from tests.kits.loghub.groups.slow_store import SlowStore
from tests.kits.loghub.groups.world import Weather, run_groups
from tests.kits.models import Mutant, replaced, together

_transact = SlowStore.transact
_renew = GroupMembers.renew
_changed = ConsumerGroups._changed


async def _transact_as_told(
    store: SlowStore,
    compares: list[Compare],
    then: list[KeyOperation],
    otherwise: tuple[KeyOperation, ...] = (),
) -> TransactionOutcome:
    """Somebody else was faster, and it is told all the same."""
    outcome = await _transact(store, compares, then, otherwise)
    is_record = then[0].key.endswith("/record")
    return TransactionOutcome(True, outcome.version) if is_record else outcome


async def _transact_whatever_is_there(
    store: SlowStore,
    compares: list[Compare],
    then: list[KeyOperation],
    otherwise: tuple[KeyOperation, ...] = (),
) -> TransactionOutcome:
    """Whatever the record has become since it was read."""
    kept = [each for each in compares if not each.key.endswith("/record")]
    return await _transact(store, kept, then, otherwise)


async def _remembered(members: GroupMembers, name: GroupName, consumer: str) -> int:
    return members._leases.get(name.member(consumer), 0)


async def _change_and_renew(
    groups: ConsumerGroups,
    name: GroupName,
    found: ConsumerGroupState,
    consumer: str,
    held: Collection[int],
) -> Tenures | None:
    """Only after the record was read: the lease may have ended in between."""
    tenures = await _changed(groups, name, found, consumer, held)
    await _renew(groups._members, name, consumer)
    return tenures


_run = partial(
    run_groups,
    weather=Weather(slow=0.15, join=0.3, leave=0.0, crash=0.05, freeze=0.5, reshard=0.05),
)
MUTANTS = {
    "overwrites what another gateway wrote": Mutant(
        _run,
        replaced(SlowStore, transact=_transact_whatever_is_there),
        first=24,
    ),
    "renews a lease after it read": Mutant(
        _run,
        together(
            replaced(GroupMembers, renew=_remembered),
            replaced(ConsumerGroups, _changed=_change_and_renew),
        ),
        first=58,
    ),
    "renews no lease": Mutant(_run, replaced(GroupMembers, renew=_remembered)),
    "tells what was refused": Mutant(
        _run, replaced(SlowStore, transact=_transact_as_told), first=13
    ),
}
