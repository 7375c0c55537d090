"""How a logstore's shards come and go: each step one new value of the logstore. No I/O.

Every change is begun by one step that says all that is to happen, and carried out by whoever comes
along: logs are made, sealed or removed, and a last step says that it is done. A gateway that dies
in between leaves nothing half-done that another would not finish.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from raftwood.loghub.errors import InvalidParameter, ShardNotFound, ShardReadonly
from raftwood.loghub.key_ranges import check_cut, contains, even_ranges, middle
from raftwood.loghub.model import SHARDS_MAX, Logstore, Shard, ShardStatus

_WRITABLE = (ShardStatus.READWRITE, ShardStatus.SEALING)


def with_first_shards(logstore: Logstore, logs: Sequence[str], *, now_s: int) -> Logstore:
    """A new logstore with a shard for each log, still to be made."""
    shards = tuple(
        Shard(
            id=number,
            log=log,
            status=ShardStatus.CREATING,
            begin=begin,
            end=end,
            created_s=now_s,
        )
        for number, (log, (begin, end)) in enumerate(zip(logs, even_ranges(len(logs)), strict=True))
    )
    return replace(logstore, shards=shards, next_shard=len(shards))


def begin_split(
    logstore: Logstore, number: int, key: str | None, logs: tuple[str, str], *, now_s: int
) -> Logstore:
    """Cut a shard's range at a key, or in the middle."""
    parent = _writable(logstore, number)
    cut = middle(parent.begin, parent.end) if key is None else key
    check_cut(parent.begin, parent.end, cut)
    ranges = [(parent.begin, cut), (cut, parent.end)]
    return _begin_hand_over(logstore, [parent], ranges, logs, now_s)


def begin_merge(logstore: Logstore, number: int, log: str, *, now_s: int) -> Logstore:
    """Join a shard with the one whose range follows."""
    first = _writable(logstore, number)
    second = next(
        (
            each
            for each in logstore.shards
            if each.begin == first.end and each.status is ShardStatus.READWRITE
        ),
        None,
    )
    if second is None:
        raise InvalidParameter(
            f"no shard that can be written begins where shard {number} ends: merge one before it"
        )
    return _begin_hand_over(logstore, [first, second], [(first.begin, second.end)], (log,), now_s)


def _begin_hand_over(
    logstore: Logstore,
    parents: list[Shard],
    ranges: list[tuple[str, str]],
    logs: Sequence[str],
    now_s: int,
) -> Logstore:
    if len(logstore.shards) + len(ranges) > SHARDS_MAX:
        raise InvalidParameter(
            f"logstore {logstore.name} has {len(logstore.shards)} shards, {SHARDS_MAX} at the most "
            "with those that only can be read: delete some of these"
        )
    children = tuple(
        Shard(
            id=logstore.next_shard + place,
            log=log,
            status=ShardStatus.CREATING,
            begin=begin,
            end=end,
            created_s=now_s,
            parents=tuple(each.id for each in parents),
        )
        for place, ((begin, end), log) in enumerate(zip(ranges, logs, strict=True))
    )
    names = tuple(each.id for each in children)
    sealing = [replace(each, status=ShardStatus.SEALING, children=names) for each in parents]
    return replace(
        _with(logstore, sealing),
        shards=(*_with(logstore, sealing).shards, *children),
        next_shard=logstore.next_shard + len(children),
    )


def finish_hand_overs(logstore: Logstore, ends: Mapping[int, int]) -> Logstore:
    """`ends` are where logs of sealing shards ended; a hand-over without all of its ends waits."""
    changed: dict[int, Shard] = {}
    for shard in logstore.shards:
        if shard.status is not ShardStatus.SEALING or shard.id not in ends:
            continue
        siblings = [
            each
            for each in logstore.shards
            if each.children == shard.children and each.status is ShardStatus.SEALING
        ]
        if all(each.id in ends for each in siblings):
            changed[shard.id] = replace(
                shard, status=ShardStatus.READONLY, end_position=str(ends[shard.id])
            )
    done = {child for shard in changed.values() for child in shard.children}
    for shard in logstore.shards:
        if shard.id in done and shard.status is ShardStatus.CREATING:
            changed[shard.id] = replace(
                shard,
                status=ShardStatus.READWRITE,
                parent_ends=tuple(str(ends[parent]) for parent in shard.parents),
            )
    return _with(logstore, list(changed.values()))


def finish_creation(logstore: Logstore) -> Logstore:
    """The logs of shards without parents are made."""
    return _with(
        logstore,
        [
            replace(each, status=ShardStatus.READWRITE)
            for each in logstore.shards
            if each.status is ShardStatus.CREATING and not each.parents
        ],
    )


def begin_delete(logstore: Logstore, number: int) -> Logstore:
    """Let go of a shard that only can be read, with all that is in it."""
    shard = visible_shard(logstore, number)
    if shard.status is not ShardStatus.READONLY:
        raise InvalidParameter(
            f"shard {number} is {shard.status.value}: only one that was split or merged can be "
            "deleted"
        )
    return _with(logstore, [replace(shard, status=ShardStatus.DELETING)])


def finish_delete(logstore: Logstore, removed: Sequence[int]) -> Logstore:
    """The logs of these shards are gone; their children know them as parents still."""
    return replace(
        logstore,
        shards=tuple(
            each
            for each in logstore.shards
            if each.id not in removed or each.status is not ShardStatus.DELETING
        ),
    )


def is_settled(logstore: Logstore) -> bool:
    """Whether nothing that was begun is left to be done."""
    lasting = (ShardStatus.READWRITE, ShardStatus.READONLY)
    return not logstore.is_deleting and all(each.status in lasting for each in logstore.shards)


def is_same_logstore(one: Logstore, other: Logstore) -> bool:
    """Whether two values are of one logstore, and not of two that had the same name: a log is of
    one shard alone.
    """
    logs = {each.id: each.log for each in one.shards}
    return all(logs.get(each.id, each.log) == each.log for each in other.shards)


def visible_shard(logstore: Logstore, number: int) -> Shard:
    shard = logstore.shard(number)
    if shard is None or shard.status in (ShardStatus.CREATING, ShardStatus.DELETING):
        raise ShardNotFound(f"logstore {logstore.name} has no shard {number}: list its shards")
    return shard


def _writable(logstore: Logstore, number: int) -> Shard:
    shard = visible_shard(logstore, number)
    if shard.status is not ShardStatus.READWRITE:
        raise ShardReadonly(f"shard {number} is {shard.status.value}: it was split or merged")
    return shard


def shard_of_key(logstore: Logstore, key: str) -> Shard:
    """The shard that a key belongs to now; there is exactly one."""
    for shard in logstore.shards:
        if shard.status in _WRITABLE and contains(shard.begin, shard.end, key):
            return shard
    raise ShardNotFound(f"logstore {logstore.name} is being made or deleted: try again, or stop")


def lineage_of_key(logstore: Logstore, key: str) -> list[Shard]:
    """Every shard that had a key and is still known, from the oldest to the one that has it now.

    At any time one shard has a key, and hands it over to one with a larger number.
    """
    had = [
        each
        for each in logstore.shards
        if each.status is not ShardStatus.CREATING and contains(each.begin, each.end, key)
    ]
    return sorted(had, key=lambda shard: shard.id)


def writable_shards(logstore: Logstore) -> list[Shard]:
    """Those that take batches, in order of their ids."""
    return [each for each in logstore.shards if each.status in _WRITABLE]


def _with(logstore: Logstore, changed: Sequence[Shard]) -> Logstore:
    by_id = {each.id: each for each in changed}
    return replace(logstore, shards=tuple(by_id.get(each.id, each) for each in logstore.shards))
