"""Bugs planted on purpose: each must be caught, or the checks prove nothing."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest import mock

from raftwood.base.seams import Compare, KeyOperation, Outcome
from raftwood.loghub.consumer_group_rules import Tenures
from raftwood.loghub.server.consumer_groups import ConsumerGroups
from raftwood.loghub.server.group_members import GroupMembers
from raftwood.loghub.server.group_records import Group, GroupName
from tests.kits.loghub.groups.slow_store import SlowStore


@contextmanager
def _tells_what_was_refused() -> Iterator[None]:
    """Somebody else was faster, and it is told all the same."""
    original = SlowStore.transact

    async def transact(
        store: SlowStore,
        compares: list[Compare],
        then: list[KeyOperation],
        otherwise: tuple[KeyOperation, ...] = (),
    ) -> Outcome:
        outcome = await original(store, compares, then, otherwise)
        is_record = then[0].key.endswith("/record")
        return Outcome(True, outcome.version) if is_record else outcome

    with mock.patch.object(SlowStore, "transact", transact):
        yield


@contextmanager
def _renews_when_it_is_told() -> Iterator[None]:
    """Only after the record was read: the lease may have ended in between."""
    renew, changed = GroupMembers.renew, ConsumerGroups._changed

    async def remembered(members: GroupMembers, name: GroupName, consumer: str) -> int:
        return members._leases.get(name.member(consumer), 0)

    async def change(
        groups: ConsumerGroups,
        name: GroupName,
        found: Group,
        consumer: str,
        held: Collection[int],
    ) -> Tenures | None:
        tenures = await changed(groups, name, found, consumer, held)
        await renew(groups._members, name, consumer)
        return tenures

    with (
        mock.patch.object(GroupMembers, "renew", remembered),
        mock.patch.object(ConsumerGroups, "_changed", change),
    ):
        yield


@contextmanager
def _renews_never() -> Iterator[None]:
    async def remembered(members: GroupMembers, name: GroupName, consumer: str) -> int:
        return members._leases.get(name.member(consumer), 0)

    with mock.patch.object(GroupMembers, "renew", remembered):
        yield


@contextmanager
def _overwrites() -> Iterator[None]:
    """Whatever the record has become since it was read."""
    original = SlowStore.transact

    async def transact(
        store: SlowStore,
        compares: list[Compare],
        then: list[KeyOperation],
        otherwise: tuple[KeyOperation, ...] = (),
    ) -> Outcome:
        kept = [each for each in compares if not each.key.endswith("/record")]
        return await original(store, kept, then, otherwise)

    with mock.patch.object(SlowStore, "transact", transact):
        yield


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "overwrites what another gateway wrote": _overwrites,
    "renews a lease after it read": _renews_when_it_is_told,
    "renews no lease": _renews_never,
    "tells what was refused": _tells_what_was_refused,
}
