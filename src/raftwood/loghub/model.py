"""What LogHub keeps in the metastore: projects, logstores with their shards, access keys.

A logstore and all its shards are one value, so that each step of a split is one compare-and-set.
"""

from enum import StrEnum
from typing import Final

import msgspec

from raftwood.base.names import checked_name
from raftwood.base.position import Position

SHARDS_MAX: Final = 512
"""Of a logstore, those counted that only can be read."""
KEY_FIRST: Final = "0" * 32
KEY_END: Final = "f" * 32
"""Where the last range ends; the key itself belongs to it as well."""


class AccessRole(StrEnum):
    """What a key may do in a project; each may do what those before it may."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


ROLES: Final = tuple(AccessRole)


def allows(has: AccessRole, needed: AccessRole) -> bool:
    return ROLES.index(has) >= ROLES.index(needed)


class AccessKey(msgspec.Struct, frozen=True, kw_only=True):
    """Who may do what; the secret signs requests, so it is kept as it is."""

    id: str
    secret: str
    roles: dict[str, AccessRole]
    """By project; `*` stands for every project, and as admin for making new ones."""
    created_s: int
    description: str = ""

    def __repr__(self) -> str:
        """Without the secret: wherever it is printed, somebody reads it."""
        return f"AccessKey(id={self.id!r}, roles={self.roles!r})"

    def role_in(self, project: str) -> AccessRole | None:
        """The stronger one of its role there and its role everywhere."""
        found = [self.roles[name] for name in ("*", project) if name in self.roles]
        return max(found, key=ROLES.index, default=None)


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A name space with its own rights and quota."""

    name: str
    description: str = ""
    owner: str = ""
    """The id of the key that made it."""
    created_s: int = 0
    modified_s: int = 0
    write_bytes_per_s_max: int = 0
    """Of each gateway; 0: as the gateway's settings say."""


class LogKind(StrEnum):
    """What a logstore's shards are kept in."""

    LOGSERVICE = "logservice"
    """A raft group for each shard."""
    DLOG = "dlog"
    """Ledgers on bookies, with one gateway as the owner of each shard's writer."""


class ShardStatus(StrEnum):
    """A shard's life, in order."""

    CREATING = "creating"
    """Its log is being made; nobody sees the shard yet."""
    READWRITE = "readwrite"
    SEALING = "sealing"
    """It is being split or merged: its log takes no more, or will not in a moment."""
    READONLY = "readonly"
    DELETING = "deleting"
    """Its log is being removed; nobody sees the shard any more."""


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A range of keys, begin ≤ key < end, and the log that holds what was put there."""

    id: int
    log: str
    status: ShardStatus
    begin: str
    end: str
    created_s: int
    parents: tuple[int, ...] = ()
    """Whose ranges it took over: all of theirs comes before all of its own."""
    parent_ends: tuple[str, ...] = ()
    """Behind the last batch of each parent, as `end_position`: for readers that come when the
    parents are gone."""
    children: tuple[int, ...] = ()
    """Who takes its range over, once it is sealing."""
    end_position: str | None = None
    """Behind its last batch, once it is readonly; as text, for JSON has no integers of 128 bits."""

    @property
    def ends_at(self) -> Position | None:
        return None if self.end_position is None else Position(int(self.end_position))


class Logstore(msgspec.Struct, frozen=True, kw_only=True):
    """A stream, with every shard that is not wholly gone."""

    project: str
    name: str
    log: LogKind = LogKind.LOGSERVICE
    """Chosen when it is made; shards of splits and merges are kept in the same."""
    ttl_days: int = 30
    """Batches older than this are freed; 0: never."""
    retained_bytes_max: int = 0
    """Of each shard: the oldest batches above it are freed, unless a reader needs them; 0: all
    are kept."""
    ttl_spares_readers: bool = False
    """Whether batches that are too old stay for as long as a registered reader needs them."""
    enable_tracking: bool = False
    append_meta: bool = False
    auto_split: bool = False
    shards_split_max: int = 64
    """With `auto_split`, up to so many shards that can be written."""
    telemetry_type: str = ""
    created_s: int = 0
    modified_s: int = 0
    next_shard: int = 0
    shards: tuple[Shard, ...] = ()
    is_deleting: bool = False

    def shard(self, number: int) -> Shard | None:
        return next((each for each in self.shards if each.id == number), None)

    def visible(self) -> list[Shard]:
        """Those that clients see, in order of their ids."""
        hidden = (ShardStatus.CREATING, ShardStatus.DELETING)
        return [each for each in self.shards if each.status not in hidden]


def check_stream_names(project: str, logstore: str = "x") -> None:
    """`InvalidName` for what cannot be a project's or a logstore's name."""
    checked_name("project", project)
    checked_name("logstore", logstore)
