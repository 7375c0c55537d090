"""`ConsumerGroups`: the assignment of a logstore's shards to consumers, and their checkpoints.

Any gateway answers any consumer. The assignment is one record in the metastore, changed by
compare-and-set. A gateway renews a consumer's lease before it reads the record: a shard that the
record gives to the consumer then cannot be taken away before the lease ends. A gateway that takes a
shard from a dead consumer checks in the same transaction that the consumer is still dead, so a
consumer that comes back in between does not lose what it was just given. `consumer_group_rules`
decides which consumer gets what.

A group's record and its consumers stand below one prefix of the metastore, so one read shows both
at the same moment. A consumer's key has a lease: the store's clock decides which consumers are
alive, not the clocks of gateways. `GroupMembers` keeps consumers alive while they send heartbeats;
`GroupProgress` knows checkpoints, and which shards are over.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, NotFound, OutOfRange, Unavailable
from raftwood.base.names import checked_name
from raftwood.base.position import Position
from raftwood.base.seams import Compare, KeyEntry, KeyOperation, MetaStore, RemoveKey, SetKey
from raftwood.loghub.errors import (
    ConsumerGroupExists,
    ConsumerGroupNotFound,
    ConsumerMismatch,
    InvalidCursor,
    InvalidParameter,
)
from raftwood.loghub.model import Logstore, Shard, check_stream_names
from raftwood.loghub.server.catalog import no_logstore
from raftwood.loghub.server.consumer_group_rules import (
    NOBODY,
    ShardTenure,
    Tenures,
    after_heartbeat,
    facts_of,
    told,
)
from raftwood.loghub.server.metadata import Metadata, logstore_key
from raftwood.loghub.server.retention import RequiredPosition
from raftwood.loghub.server.streams import Streams
from raftwood.loghub.shards import visible_shard
from raftwood.loghub.wire import ConsumerGroupView, GroupCheckpoint, decode_cursor

GROUPS: Final = "loghub/group/"
CHECKPOINTS: Final = "loghub/checkpoint/"
_RECORD: Final = "record"
_MEMBER: Final = "member/"
_CONSUMER_BYTES_MAX: Final = 100


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A group's settings, and the tenures of its shards."""

    timeout_s: int
    is_ordered: bool
    is_deleting: bool = False
    """Clients no longer see the group; its keys are being removed."""
    over: tuple[int, ...] = ()
    """Shards that were read to their ends, in order."""
    tenures: dict[int, ShardTenure] = {}


class MemberRecord(msgspec.Struct, frozen=True):
    """A live consumer."""

    consumer: str
    timeout_s: int
    """The timeout of its lease."""


class CheckpointRecord(msgspec.Struct, frozen=True):
    """A shard's checkpoint, and the consumer that set it."""

    cursor: str
    updated_us: int
    consumer: str


class GroupMember(msgspec.Struct, frozen=True):
    """A consumer's record, its lease and its version."""

    record: MemberRecord
    lease: int
    version: int


class ConsumerGroupState(msgspec.Struct, frozen=True):
    """A group at one moment."""

    record: GroupRecord
    version: int
    members: dict[str, GroupMember]


class GroupName(msgspec.Struct, frozen=True):
    """A group's name, and its keys in the metastore."""

    project: str
    logstore: str
    group: str

    @property
    def prefix(self) -> str:
        return f"{groups_of(self.project, self.logstore)}{self.group}/"

    @property
    def record(self) -> str:
        return f"{self.prefix}{_RECORD}"

    def member(self, consumer: str) -> str:
        return f"{self.prefix}{_MEMBER}{quote(consumer, safe='')}"

    @property
    def checkpoints(self) -> str:
        return f"{checkpoints_of(self.project, self.logstore)}{self.group}/"

    def checkpoint(self, shard: int) -> str:
        return f"{self.checkpoints}{shard}"


def groups_of(project: str, logstore: str) -> str:
    return f"{GROUPS}{project}/{logstore}/"


def checkpoints_of(project: str, logstore: str) -> str:
    return f"{CHECKPOINTS}{project}/{logstore}/"


def checked_group(project: str, logstore: str, group: str) -> GroupName:
    """`InvalidName` if the name is invalid."""
    check_stream_names(project, logstore)
    return GroupName(project, logstore, checked_name("consumer group", group))


def check_consumer(consumer: str) -> None:
    if not 1 <= len(quote(consumer, safe="")) <= _CONSUMER_BYTES_MAX:
        raise InvalidParameter(
            f"consumer {consumer[:120]!r} is no name for one: give 1 to {_CONSUMER_BYTES_MAX} "
            "bytes, as written in a URL"
        )


encode: Final = msgspec.json.Encoder().encode
decode_record: Final = msgspec.json.Decoder(GroupRecord).decode
decode_member: Final = msgspec.json.Decoder(MemberRecord).decode
decode_checkpoint: Final = msgspec.json.Decoder(CheckpointRecord).decode


def groups_in(prefix: str, entries: list[KeyEntry]) -> dict[str, ConsumerGroupState]:
    """Decodes all keys of a logstore's groups, by name; leaves out groups being deleted."""
    records: dict[str, KeyEntry] = {}
    members: dict[str, dict[str, GroupMember]] = {}
    for entry in entries:
        group, _, rest = entry.key.removeprefix(prefix).partition("/")
        if rest == _RECORD:
            records[group] = entry
        else:
            member = GroupMember(decode_member(entry.value), entry.lease, entry.version)
            members.setdefault(group, {})[member.record.consumer] = member
    found = {
        group: ConsumerGroupState(decode_record(entry.value), entry.version, members.get(group, {}))
        for group, entry in records.items()
    }
    return {group: each for group, each in found.items() if not each.record.is_deleting}


def shard_of(checkpoint_key: str) -> int:
    return int(checkpoint_key.rpartition("/")[2])


MEMBERS_MAX: Final = 512
"""Limit of one group: as many as a logstore can have shards."""
_REMEMBERED_MAX: Final = 10_000


class GroupMembers:
    """Caches consumers' leases, so that most heartbeats need not look them up."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._leases: dict[str, int] = {}

    async def renew(self, name: GroupName, consumer: str) -> int:
        """Renews a consumer's lease; returns it, or 0 if no cached lease is alive."""
        key = name.member(consumer)
        lease = self._leases.get(key, 0)
        if lease:
            try:
                await self._store.keep_alive(lease)
            except NotFound:
                self._leases.pop(key, None)
                return 0
        return lease

    async def join(self, name: GroupName, consumer: str, group: ConsumerGroupState) -> None:
        """Caches the consumer's lease, or grants one. If another gateway was faster, nothing is
        done; the caller reads the group again.
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
        # Revoke the lease that keeps no key alive, or no longer does, instead of waiting for its
        # end.
        unused = (known.lease if known else 0) if outcome.held else lease
        if unused:
            await self._store.revoke_lease(unused)

    def _remember(self, key: str, lease: int) -> None:
        if len(self._leases) >= _REMEMBERED_MAX:
            self._leases.clear()
        self._leases[key] = lease


_LOOKS_MAX: Final = 8
"""Limit of reads of logs during one heartbeat."""
_LOOK_AGAIN_MS: Final = 3_000


class GroupProgress:
    """Checkpoints of consumer groups, and shards that are over. Each gateway has one."""

    def __init__(self, environment: Environment, metadata: Metadata, streams: Streams) -> None:
        self._environment = environment
        self._metadata = metadata
        self._streams = streams
        self._looked_ms: dict[tuple[GroupName, str], int] = {}
        """When a shard's log was last found to have something left for a group."""

    async def checkpoints(self, name: GroupName) -> dict[int, CheckpointRecord]:
        """Returns the checkpoints that were ever set, by shard."""
        return {
            shard_of(entry.key): decode_checkpoint(entry.value)
            async for entry in self._metadata.entries(name.checkpoints)
        }

    async def over(self, name: GroupName, record: GroupRecord, logstore: Logstore) -> list[int]:
        """Returns the readonly shards that the group has read to their ends."""
        there = {each.id for each in logstore.shards}
        over = {shard for shard in record.over if shard in there or shard >= logstore.next_shard}
        ended = [
            each for each in logstore.visible() if each.ends_at is not None and each.id not in over
        ]
        if ended:
            checkpoints = await self.checkpoints(name)
            over.update(await self._read_to_the_end(name, ended, checkpoints))
        return sorted(over)

    async def _read_to_the_end(
        self, name: GroupName, ended: Iterable[Shard], checkpoints: dict[int, CheckpointRecord]
    ) -> list[int]:
        found: list[int] = []
        looks = _LOOKS_MAX
        for shard in ended:
            position = position_of(checkpoints.get(shard.id))
            if shard.ends_at is not None and position >= shard.ends_at:
                found.append(shard.id)
            elif looks and self._is_look_due(name, shard):
                looks -= 1
                if await self._has_nothing_left(shard, position):
                    found.append(shard.id)
        return found

    def _is_look_due(self, name: GroupName, shard: Shard) -> bool:
        now = self._environment.clock.monotonic_ns() // 1_000_000
        looked = self._looked_ms.get((name, shard.log))
        if looked is not None and now - looked < _LOOK_AGAIN_MS:
            return False
        if len(self._looked_ms) >= _REMEMBERED_MAX:
            self._looked_ms.clear()
        self._looked_ms[name, shard.log] = now
        return True

    async def _has_nothing_left(self, shard: Shard, position: Position) -> bool:
        """Whether no batch follows a checkpoint. A client sets its checkpoint behind the last batch
        that it read: it sets none in an empty shard, and one below the end if the log ends with
        positions that hold no batch.
        """
        try:
            bounds = await self._streams.bounds(shard)
            left = replace(bounds, first=max(bounds.first, position))
            return await self._streams.first_batch(shard, left) is None
        except (Unavailable, DeadlineExceeded, NotFound, OutOfRange):
            return False  # it is asked again


def position_of(checkpoint: CheckpointRecord | None) -> Position:
    """Returns the position where the group goes on; the beginning for an unread shard."""
    if checkpoint is None or not checkpoint.cursor:
        return Position(0)
    return decode_cursor(checkpoint.cursor)


GROUPS_MAX: Final = 64
"""Limit of one logstore."""
TIMEOUT_S_MAX: Final = 6 * 3600
ATTEMPTS_MAX: Final = 30
"""Attempts of a change while others change the record too."""
_PAUSE: Final = Backoff(first_ms=5, longest_ms=200, jitter=1)
_KEYS_AT_ONCE: Final = 50
"""Limit of one transaction."""


class ConsumerGroups:
    """The consumer groups of all logstores. Each gateway has one."""

    def __init__(self, environment: Environment, metadata: Metadata, streams: Streams) -> None:
        self._environment = environment
        self._metadata = metadata
        self._store = metadata.store
        self._streams = streams
        self._members = GroupMembers(metadata.store)
        self._progress = GroupProgress(environment, metadata, streams)

    # Groups

    async def create(
        self, project: str, logstore: str, group: str, *, timeout_s: int, is_ordered: bool
    ) -> None:
        name = checked_group(project, logstore, group)
        _check_timeout(timeout_s)
        record = GroupRecord(timeout_s=timeout_s, is_ordered=is_ordered)
        for attempt in range(ATTEMPTS_MAX):
            stream_key = logstore_key(project, logstore)
            stream = await self._store.get(stream_key)
            if stream is None or msgspec.json.decode(stream.value, type=Logstore).is_deleting:
                raise no_logstore(project, logstore)
            known = await self._store.get(name.record)
            if known is not None and not decode_record(known.value).is_deleting:
                raise ConsumerGroupExists(f"consumer group {group} exists already in {logstore}")
            if known is not None:
                await self._remove(name)
                continue
            if len(await self._groups(project, logstore)) >= GROUPS_MAX:
                raise InvalidParameter(
                    f"logstore {logstore} has {GROUPS_MAX} consumer groups already: delete some"
                )
            # A logstore that is being deleted must not get a group meanwhile.
            outcome = await self._store.transact(
                [Compare(stream_key, stream.version), Compare(name.record, 0)],
                [SetKey(name.record, encode(record))],
            )
            if outcome.held:
                return
            await self._pause(attempt)
        raise _too_many(name)

    async def update(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        timeout_s: int | None,
        is_ordered: bool | None,
    ) -> None:
        """Updates a group. A new order applies to free shards; shards with a holder go on."""
        name = checked_group(project, logstore, group)
        if timeout_s is not None:
            _check_timeout(timeout_s)
        for attempt in range(ATTEMPTS_MAX):
            record, version = await self._record(name)
            new = replace(
                record,
                timeout_s=record.timeout_s if timeout_s is None else timeout_s,
                is_ordered=record.is_ordered if is_ordered is None else is_ordered,
            )
            if new == record or await self._set(name, new, version):
                return
            await self._pause(attempt)
        raise _too_many(name)

    async def delete(self, project: str, logstore: str, group: str) -> None:
        name = checked_group(project, logstore, group)
        for attempt in range(ATTEMPTS_MAX):
            record, version = await self._record(name)
            if await self._set(name, replace(record, is_deleting=True), version):
                return await self._remove(name)
            await self._pause(attempt)
        raise _too_many(name)

    async def _remove(self, name: GroupName) -> None:
        """Removes all keys of a group that is being deleted. Its record goes last: a gateway that
        creates a group of this name must finish the removal first, and a late gateway then finds
        another record, or none.
        """
        found = await self._store.get(name.record)
        if found is None or not decode_record(found.value).is_deleting:
            return
        current = Compare(name.record, found.version)
        for prefix in (name.checkpoints, name.prefix):
            keys = [entry.key async for entry in self._metadata.entries(prefix)]
            await self._remove_keys([key for key in keys if key != name.record], current)
        await self._store.compare_and_set(name.record, None, version=found.version)

    async def _remove_keys(self, keys: Sequence[str], *while_: Compare) -> None:
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            await self._store.transact(
                while_, [RemoveKey(key) for key in keys[first : first + _KEYS_AT_ONCE]]
            )

    async def delete_all(self, project: str, logstore: str, current: Compare) -> None:
        """Removes all keys of the groups of a deleted logstore, as long as `current` is the
        logstore's value: another logstore of the same name has groups of its own.
        """
        for prefix in (groups_of(project, logstore), checkpoints_of(project, logstore)):
            keys = [entry.key async for entry in self._metadata.entries(prefix)]
            await self._remove_keys(keys, current)

    async def groups(self, project: str, logstore: str) -> list[ConsumerGroupView]:
        await self._streams.logstore(project, logstore)
        found = await self._groups(project, logstore)
        return [
            ConsumerGroupView(
                name=group, timeout_s=each.record.timeout_s, is_ordered=each.record.is_ordered
            )
            for group, each in sorted(found.items())
        ]

    async def _groups(self, project: str, logstore: str) -> dict[str, ConsumerGroupState]:
        prefix = groups_of(project, logstore)
        return groups_in(prefix, [entry async for entry in self._metadata.entries(prefix)])

    # Heartbeats

    async def heartbeat(
        self, project: str, logstore: str, group: str, *, consumer: str, held: Sequence[int]
    ) -> list[int]:
        """Returns the consumer's shards. It holds all that it lists, also those it is ending."""
        name = checked_group(project, logstore, group)
        check_consumer(consumer)
        listed = frozenset(held)
        for attempt in range(ATTEMPTS_MAX):
            lease = await self._members.renew(name, consumer)
            found = await self._group(name)
            mine = found.members.get(consumer)
            is_current = mine is not None and mine.record.timeout_s == found.record.timeout_s
            if not lease or mine is None or mine.lease != lease or not is_current:
                await self._members.join(name, consumer, found)
                continue
            tenures = await self._changed(name, found, consumer, listed)
            if tenures is not None:
                return told(tenures, consumer)
            await self._pause(attempt)
        raise _too_many(name)

    async def _changed(
        self, name: GroupName, found: ConsumerGroupState, consumer: str, held: Collection[int]
    ) -> Tenures | None:
        """Returns the tenures after the heartbeat; None if another gateway was faster."""
        logstore = await self._streams.logstore(name.project, name.logstore)
        record = found.record
        holders = {tenure.holder for tenure in record.tenures.values()}
        heirs = {tenure.heir for tenure in record.tenures.values()}
        missing = sorted(holders.union(heirs).difference(found.members, (NOBODY,)))
        dead = missing[:_KEYS_AT_ONCE]
        facts = facts_of(
            logstore,
            record.tenures,
            over=(over := await self._progress.over(name, record, logstore)),
            alive=frozenset([*found.members, *missing[_KEYS_AT_ONCE:]]),
            is_ordered=record.is_ordered,
        )
        tenures = after_heartbeat(record.tenures, consumer=consumer, held=held, facts=facts)
        new = replace(record, over=tuple(over), tenures=dict(sorted(tenures.items())))
        if new == record:
            return tenures
        outcome = await self._store.transact(
            [
                Compare(name.record, found.version),
                *(Compare(name.member(each), 0) for each in dead),
            ],
            [
                SetKey(name.record, encode(new)),
                *(RemoveKey(name.checkpoint(shard)) for shard in _gone(record, new, logstore)),
            ],
        )
        return tenures if outcome.held else None

    # Checkpoints

    async def set_checkpoint(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        shard: int,
        checkpoint: str,
        consumer: str,
        is_forced: bool,
    ) -> None:
        """Sets a checkpoint; `ConsumerMismatch` without the shard, unless it is forced."""
        name = checked_group(project, logstore, group)
        if consumer or not is_forced:
            check_consumer(consumer)
        position = position_of(CheckpointRecord(checkpoint, 0, consumer))
        cursor = "".join(checkpoint.split())
        ends_at = (await self._shard(name, shard)).ends_at
        if ends_at is not None and position > ends_at:
            raise InvalidCursor(f"shard {shard} ends at {ends_at}: {position} is behind it")
        now_us = self._environment.clock.wall_ns() // 1000
        setting = SetKey(name.checkpoint(shard), encode(CheckpointRecord(cursor, now_us, consumer)))
        for attempt in range(ATTEMPTS_MAX):
            record, version = await self._record(name)
            tenure = record.tenures.get(shard)
            if not is_forced and (tenure is None or tenure.holder != consumer):
                raise ConsumerMismatch(
                    f"consumer {consumer} does not have shard {shard}: another one reads it now"
                )
            changes: list[KeyOperation] = [setting]
            if shard in record.over and (ends_at is None or position < ends_at):
                over = tuple(each for each in record.over if each != shard)
                changes.append(SetKey(name.record, encode(replace(record, over=over))))
            outcome = await self._store.transact([Compare(name.record, version)], changes)
            if outcome.held:
                return
            await self._pause(attempt)
        raise _too_many(name)

    async def checkpoints(
        self, project: str, logstore: str, group: str, *, shard: int | None
    ) -> list[GroupCheckpoint]:
        """Returns the checkpoint of each shard, in order, or of the one that is named."""
        name = checked_group(project, logstore, group)
        await self._record(name)
        if shard is not None:
            wanted = [(await self._shard(name, shard)).id]
            stored = await self._store.get(name.checkpoint(shard))
            found = {} if stored is None else {shard: decode_checkpoint(stored.value)}
        else:
            wanted = [each.id for each in await self._streams.shards(project, logstore)]
            found = await self._progress.checkpoints(name)
        return [_checkpoint(each, found.get(each)) for each in wanted]

    async def required_positions(self, project: str, logstore: str) -> dict[int, RequiredPosition]:
        """Returns the slowest group's position by shard; empty if there are no groups."""
        groups = await self._groups(project, logstore)
        stream = await self._streams.logstore(project, logstore)
        required: dict[int, RequiredPosition] = {}
        for group in sorted(groups):
            found = await self._progress.checkpoints(GroupName(project, logstore, group))
            over = groups[group].record.over
            for shard in stream.visible():
                position = position_of(found.get(shard.id))
                if shard.ends_at is not None and shard.id in over:
                    position = shard.ends_at  # with nothing left, clients set no checkpoint there
                known = required.get(shard.id)
                if known is None or position < known.position:
                    required[shard.id] = RequiredPosition(position, group)
        return required

    # Records

    async def _group(self, name: GroupName) -> ConsumerGroupState:
        entries = [entry async for entry in self._metadata.entries(name.prefix)]
        found = groups_in(groups_of(name.project, name.logstore), entries)
        if name.group not in found:
            raise await self._no_group(name)
        return found[name.group]

    async def _record(self, name: GroupName) -> tuple[GroupRecord, int]:
        stored = await self._store.get(name.record)
        record = None if stored is None else decode_record(stored.value)
        if stored is None or record is None or record.is_deleting:
            raise await self._no_group(name)
        return record, stored.version

    async def _no_group(self, name: GroupName) -> ConsumerGroupNotFound:
        """Returns the error to raise; if the logstore is missing too, raises that error."""
        await self._streams.shards(name.project, name.logstore)
        return ConsumerGroupNotFound(
            f"there is no consumer group {name.group} in logstore {name.logstore}: create it"
        )

    async def _shard(self, name: GroupName, shard: int) -> Shard:
        known = await self._streams.logstore(name.project, name.logstore)
        if all(each.id != shard for each in known.visible()):
            await self._streams.shards(name.project, name.logstore)  # the copy is fresh then
            known = await self._streams.logstore(name.project, name.logstore)
        return visible_shard(known, shard)

    async def _set(self, name: GroupName, record: GroupRecord, version: int) -> bool:
        written = await self._store.compare_and_set(name.record, encode(record), version=version)
        return written is not None

    async def _pause(self, attempt: int) -> None:
        await asyncio.sleep(_PAUSE.delay_s(attempt, self._environment.random))


def _checkpoint(shard: int, found: CheckpointRecord | None) -> GroupCheckpoint:
    found = found or CheckpointRecord("", 0, "")
    return GroupCheckpoint(
        shard=shard,
        checkpoint=found.cursor,
        updated_us=found.updated_us,
        consumer=found.consumer,
    )


def _gone(before: GroupRecord, after: GroupRecord, logstore: Logstore) -> list[int]:
    """Returns shards that the group knew and that are deleted: their checkpoints can be removed."""
    known = {*before.over, *before.tenures}.difference(after.over, after.tenures)
    there = {each.id for each in logstore.shards}
    gone = [each for each in known if each not in there and each < logstore.next_shard]
    return sorted(gone)[:_KEYS_AT_ONCE]


def _check_timeout(timeout_s: int) -> None:
    if not 1 <= timeout_s <= TIMEOUT_S_MAX:
        raise InvalidParameter(f"a timeout of {timeout_s} s: give 1 to {TIMEOUT_S_MAX}")


def _too_many(name: GroupName) -> Unavailable:
    return Unavailable(f"consumer group {name.group} is changed by too many at a time: try again")
