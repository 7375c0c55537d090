"""What LogHub keeps in the metastore: projects, logstores with their shards, access keys.

A logstore and all its shards are one value, so that each step of a split is one compare-and-set.
"""

from enum import StrEnum
from typing import Final

import msgspec

from raftwood.base.names import checked_name
from raftwood.base.position import Position

SHARDS_MAX: Final = 512
"""Limit of one logstore; readonly shards count too."""
KEY_FIRST: Final = "0" * 32
KEY_END: Final = "f" * 32
"""The end of the last range; that range includes this key as well."""


class AccessRole(StrEnum):
    """A key's role in a project; each role includes those before it."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


ROLES: Final = tuple(AccessRole)


def allows(has: AccessRole, needed: AccessRole) -> bool:
    return ROLES.index(has) >= ROLES.index(needed)


class AccessKey(msgspec.Struct, frozen=True, kw_only=True):
    """An access key and its rights. The secret signs requests, so it is stored in plain text."""

    id: str
    secret: str
    roles: dict[str, AccessRole]
    """Roles by project; `*` stands for every project. Its role `admin` may create projects."""
    created_s: int
    description: str = ""

    def __repr__(self) -> str:
        """Leaves the secret out: a printed secret can be read by anybody."""
        return f"AccessKey(id={self.id!r}, roles={self.roles!r})"

    def role_in(self, project: str) -> AccessRole | None:
        """Returns the stronger of the key's role in the project and its role in `*`."""
        found = [self.roles[name] for name in ("*", project) if name in self.roles]
        return max(found, key=ROLES.index, default=None)


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace with its own rights and quota."""

    name: str
    description: str = ""
    owner: str = ""
    """The id of the key that created it."""
    created_s: int = 0
    modified_s: int = 0
    write_bytes_per_s_max: int = 0
    """The limit at each gateway; 0 for the limit of the gateway's settings."""


class LogKind(StrEnum):
    """Where a logstore's shards are stored."""

    LOGSERVICE = "logservice"
    """A raft group for each shard."""
    DLOG = "dlog"
    """Ledgers on bookies, with one gateway as the owner of each shard's writer."""


class ShardStatus(StrEnum):
    """The states of a shard's life, in order."""

    CREATING = "creating"
    """Its log is being created; clients do not see the shard yet."""
    READWRITE = "readwrite"
    SEALING = "sealing"
    """It is being split or merged: its log takes no more records, or is just being sealed."""
    READONLY = "readonly"
    DELETING = "deleting"
    """Its log is being removed; clients do not see the shard any more."""


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A range of keys, begin ≤ key < end, and the log that holds their records."""

    id: int
    log: str
    status: ShardStatus
    begin: str
    end: str
    created_s: int
    parents: tuple[int, ...] = ()
    """The shards whose ranges it took over; all of their records come before all of its own."""
    parent_ends: tuple[str, ...] = ()
    """The position behind the last batch of each parent, like `end_position`: readers may come when
    the parents are gone.
    """
    children: tuple[int, ...] = ()
    """The shards that take over its range, once it is sealing."""
    end_position: str | None = None
    """Behind its last batch, once it is readonly; text, as JSON has no 128-bit integers."""

    @property
    def ends_at(self) -> Position | None:
        return None if self.end_position is None else Position(int(self.end_position))


class Logstore(msgspec.Struct, frozen=True, kw_only=True):
    """A stream, with every shard that is not removed entirely."""

    project: str
    name: str
    log: LogKind = LogKind.LOGSERVICE
    """Chosen at creation; shards of splits and merges use the same kind."""
    ttl_days: int = 30
    """Batches older than this are freed; 0: never."""
    retained_bytes_max: int = 0
    """Limit of each shard: above it the oldest batches no reader needs are freed; 0: no limit."""
    ttl_spares_readers: bool = False
    """Whether batches past their TTL stay as long as a registered reader needs them."""
    enable_tracking: bool = False
    append_meta: bool = False
    auto_split: bool = False
    shards_split_max: int = 64
    """Limit of writable shards with `auto_split`."""
    telemetry_type: str = ""
    created_s: int = 0
    modified_s: int = 0
    next_shard: int = 0
    shards: tuple[Shard, ...] = ()
    is_deleting: bool = False

    def shard(self, number: int) -> Shard | None:
        return next((each for each in self.shards if each.id == number), None)

    def visible(self) -> list[Shard]:
        """Returns the shards that clients see, in order of their ids."""
        hidden = (ShardStatus.CREATING, ShardStatus.DELETING)
        return [each for each in self.shards if each.status not in hidden]


def check_stream_names(project: str, logstore: str = "x") -> None:
    """`InvalidName` if a name is invalid for a project or a logstore."""
    checked_name("project", project)
    checked_name("logstore", logstore)
