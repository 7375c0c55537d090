"""What the metastore keeps of consumer groups: a record for each, its consumers, its checkpoints.

A group's record and its consumers stand below one prefix, so that one read tells both as of the
same moment. A consumer's key is under a lease: who lives is for the store's clock to say, not for
those of gateways.
"""

from typing import Final
from urllib.parse import quote

import msgspec

from raftwood.base.names import checked_name
from raftwood.base.seams import Entry
from raftwood.loghub.consumer_group_rules import Tenure
from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.model import check_stream_names

GROUPS: Final = "loghub/group/"
CHECKPOINTS: Final = "loghub/checkpoint/"
_RECORD: Final = "record"
_MEMBER: Final = "member/"
_CONSUMER_BYTES_MAX: Final = 100


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a group is, and who of it has which shard."""

    timeout_s: int
    is_ordered: bool
    is_deleting: bool = False
    """Nobody sees it any more; its keys are being removed."""
    over: tuple[int, ...] = ()
    """Shards that were read to their ends, in order."""
    tenures: dict[int, Tenure] = {}


class MemberRecord(msgspec.Struct, frozen=True):
    """A consumer that lives."""

    consumer: str
    timeout_s: int
    """Of its lease."""


class CheckpointRecord(msgspec.Struct, frozen=True):
    """How far a shard was read, and who said so."""

    cursor: str
    updated_us: int
    consumer: str


class Member(msgspec.Struct, frozen=True):
    """A consumer's record, its lease and its version."""

    record: MemberRecord
    lease: int
    version: int


class Group(msgspec.Struct, frozen=True):
    """A group at one moment."""

    record: GroupRecord
    version: int
    members: dict[str, Member]


class GroupName(msgspec.Struct, frozen=True):
    """Which group it is, and where its keys stand."""

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
    """`InvalidName` for what cannot be a group's name."""
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


def groups_in(prefix: str, entries: list[Entry]) -> dict[str, Group]:
    """By name, from all keys below the prefix of a logstore's groups; not those being deleted."""
    records: dict[str, Entry] = {}
    members: dict[str, dict[str, Member]] = {}
    for entry in entries:
        group, _, rest = entry.key.removeprefix(prefix).partition("/")
        if rest == _RECORD:
            records[group] = entry
        else:
            member = Member(decode_member(entry.value), entry.lease, entry.version)
            members.setdefault(group, {})[member.record.consumer] = member
    found = {
        group: Group(decode_record(entry.value), entry.version, members.get(group, {}))
        for group, entry in records.items()
    }
    return {group: each for group, each in found.items() if not each.record.is_deleting}


def shard_of(checkpoint_key: str) -> int:
    return int(checkpoint_key.rpartition("/")[2])
