"""`GroupMembers`: keeps the consumers of groups alive, as long as they send heartbeats."""

from typing import Final

from raftwood.base.errors import NotFound
from raftwood.base.seams import Compare, MetaStore, SetKey
from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.server.group_records import Group, GroupName, MemberRecord, encode

MEMBERS_MAX: Final = 512
"""Of a group: as many as a logstore can have shards."""
_REMEMBERED_MAX: Final = 10_000


class GroupMembers:
    """Remembers leases, so that most heartbeats need not look them up."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._leases: dict[str, int] = {}

    async def renew(self, name: GroupName, consumer: str) -> int:
        """Begin its time anew; its lease, or 0 where none is remembered that lives."""
        key = name.member(consumer)
        lease = self._leases.get(key, 0)
        if lease:
            try:
                await self._store.keep_alive(lease)
            except NotFound:
                self._leases.pop(key, None)
                return 0
        return lease

    async def join(self, name: GroupName, consumer: str, group: Group) -> None:
        """Remember the consumer's lease, or give it one. Somebody else may be faster: then nothing
        is done, and the group is to be read again.
        """
        key, known = name.member(consumer), group.members.get(consumer)
        timeout_s = group.record.timeout_s
        if known is not None and known.record.timeout_s == timeout_s:
            self._remember(key, known.lease)
            return
        if known is None and len(group.members) >= MEMBERS_MAX:
            raise InvalidParameter(
                f"consumer group {name.group} has {MEMBERS_MAX} consumers already: stop some"
            )
        lease = await self._store.grant_lease(ttl_ms=timeout_s * 1000)
        outcome = await self._store.transact(
            [Compare(name.record, group.version), Compare(key, known.version if known else 0)],
            [SetKey(key, encode(MemberRecord(consumer, timeout_s)), lease)],
        )
        if outcome.held:
            self._remember(key, lease)
        # What a lease does not keep alive, or no longer does, need not wait for its end.
        unused = (known.lease if known else 0) if outcome.held else lease
        if unused:
            await self._store.revoke_lease(unused)

    def _remember(self, key: str, lease: int) -> None:
        if len(self._leases) >= _REMEMBERED_MAX:
            self._leases.clear()
        self._leases[key] = lease
