"""Shards of a logstore: key ranges, the names of their logs, and splits and merges. No I/O.

Keys are MD5 digests as 32 hexadecimal digits. A log's name includes the kind of log, so a caller
finds the log by its name alone. A log name is never used twice.

A split, merge or deletion begins with one new value of the logstore that describes all of its
steps. Any gateway carries it out: it creates, seals or removes logs, and a last value records that
it is done. If a gateway dies in between, another one finishes the work.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from raftwood.loghub.errors import InvalidParameter, ShardNotFound, ShardReadonly
from raftwood.loghub.model import (
    KEY_END,
    KEY_FIRST,
    SHARDS_MAX,
    LogKind,
    Logstore,
    Shard,
    ShardStatus,
)

_SPACE: Final = 1 << 128
_KEY: Final = re.compile(r"[0-9a-f]{32}")


def hash_key(key: bytes) -> str:
    """Hashes a producer's key to its place among the ranges."""
    return hashlib.md5(key, usedforsecurity=False).hexdigest()


def checked_key(text: str) -> str:
    """Normalizes a key as SLS clients write it, in any case."""
    key = text.lower()
    if not _KEY.fullmatch(key):
        raise InvalidParameter(f"key {text[:60]!r} is none: give 32 hexadecimal digits")
    return key


def contains(begin: str, end: str, key: str) -> bool:
    """Whether a key belongs to a range; the very last key belongs to the last one."""
    return begin <= key < end or key == end == KEY_END


def even_ranges(count: int) -> list[tuple[str, str]]:
    """Divides the key space into `count` ranges of nearly the same size."""
    bounds = [f"{_SPACE * number // count:032x}" for number in range(count)]
    return list(zip(bounds, [*bounds[1:], KEY_END], strict=True))


def middle(begin: str, end: str) -> str:
    """Returns the key in the middle of a range."""
    return f"{(int(begin, 16) + int(end, 16) + 1) // 2:032x}"


def check_cut(begin: str, end: str, key: str) -> None:
    """`InvalidParameter` if a cut at the key would leave one side empty."""
    if not begin < key < end:
        raise InvalidParameter(
            f"key {key} does not cut the range {begin} to {end} in two: give one inside it"
        )


def covers_all(ranges: list[tuple[str, str]]) -> bool:
    """Whether the ranges cover all keys, in order, without gap or overlap."""
    expected = KEY_FIRST
    for begin, end in sorted(ranges):
        if begin != expected or end <= begin:
            return False
        expected = end
    return expected == KEY_END


LOG_PREFIX: Final = "loghub-"
"""The prefix of all log names; a name without a second prefix is of the log service."""
_DLOG_PREFIX: Final = f"{LOG_PREFIX}dlog-"
RANDOM_BYTES: Final = 12
_LOG_NAME: Final = re.compile(rf"{LOG_PREFIX}(dlog-)?[0-9a-f]{{{2 * RANDOM_BYTES}}}")


def log_name(kind: LogKind, random: bytes) -> str:
    return f"{_DLOG_PREFIX if kind is LogKind.DLOG else LOG_PREFIX}{random.hex()}"


def kind_of_log(name: str) -> LogKind:
    """Returns the kind of log that a name belongs to."""
    return LogKind.DLOG if name.startswith(_DLOG_PREFIX) else LogKind.LOGSERVICE


def is_log_name(name: str) -> bool:
    """Whether LogHub made this name."""
    return _LOG_NAME.fullmatch(name) is not None


_WRITABLE = (ShardStatus.READWRITE, ShardStatus.SEALING)


def with_first_shards(logstore: Logstore, logs: Sequence[str], *, now_s: int) -> Logstore:
    """Adds a shard for each log to a new logstore; the logs are still to be created."""
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
    """Begins to split a shard at a key, or in the middle of its range."""
    parent = _writable(logstore, number)
    cut = middle(parent.begin, parent.end) if key is None else key
    check_cut(parent.begin, parent.end, cut)
    ranges = [(parent.begin, cut), (cut, parent.end)]
    return _begin_hand_over(logstore, [parent], ranges, logs, now_s)


def begin_merge(logstore: Logstore, number: int, log: str, *, now_s: int) -> Logstore:
    """Begins to merge a shard with the one whose range follows."""
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
    """Completes hand-overs. `ends` has ends of sealed logs; a hand-over that lacks one waits."""
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
    """Records that the logs of shards without parents exist."""
    return _with(
        logstore,
        [
            replace(each, status=ShardStatus.READWRITE)
            for each in logstore.shards
            if each.status is ShardStatus.CREATING and not each.parents
        ],
    )


def begin_delete(logstore: Logstore, number: int) -> Logstore:
    """Begins to delete a readonly shard with all of its records."""
    shard = visible_shard(logstore, number)
    if shard.status is not ShardStatus.READONLY:
        raise InvalidParameter(
            f"shard {number} is {shard.status.value}: only one that was split or merged can be "
            "deleted"
        )
    return _with(logstore, [replace(shard, status=ShardStatus.DELETING)])


def finish_delete(logstore: Logstore, removed: Sequence[int]) -> Logstore:
    """Records that these shards' logs are removed; their children still name them as parents."""
    return replace(
        logstore,
        shards=tuple(
            each
            for each in logstore.shards
            if each.id not in removed or each.status is not ShardStatus.DELETING
        ),
    )


def is_settled(logstore: Logstore) -> bool:
    """Whether no split, merge or deletion is unfinished."""
    lasting = (ShardStatus.READWRITE, ShardStatus.READONLY)
    return not logstore.is_deleting and all(each.status in lasting for each in logstore.shards)


def is_same_logstore(one: Logstore, other: Logstore) -> bool:
    """Whether two values are of one logstore, and not of two that had the same name in turn; a log
    belongs to one shard only.
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
    """Returns the one shard that a key belongs to now."""
    for shard in logstore.shards:
        if shard.status in _WRITABLE and contains(shard.begin, shard.end, key):
            return shard
    raise ShardNotFound(f"logstore {logstore.name} is being made or deleted: try again, or stop")


def lineage_of_key(logstore: Logstore, key: str) -> list[Shard]:
    """Returns every known shard that ever had a key, from the oldest to the present one.

    At any time one shard has a key, and it hands the key over to one with a larger number.
    """
    had = [
        each
        for each in logstore.shards
        if each.status is not ShardStatus.CREATING and contains(each.begin, each.end, key)
    ]
    return sorted(had, key=lambda shard: shard.id)


def writable_shards(logstore: Logstore) -> list[Shard]:
    """Returns the shards that take batches, in order of their ids."""
    return [each for each in logstore.shards if each.status in _WRITABLE]


def _with(logstore: Logstore, changed: Sequence[Shard]) -> Logstore:
    by_id = {each.id: each for each in changed}
    return replace(logstore, shards=tuple(by_id.get(each.id, each) for each in logstore.shards))
