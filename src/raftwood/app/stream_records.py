"""Records of a logstore as commands show them: decoded, chosen, and written for people."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from raftwood.base.seams import StoredBatch
from raftwood.base.text import escaped
from raftwood.loghub.arrow_batches import SOURCE, TAG_PREFIX, TIME, TOPIC, arrow_to_log_groups
from raftwood.loghub.batches import HEAD_BYTES, Format, decode_head
from raftwood.loghub.compression import decompress
from raftwood.loghub.log_groups import decode_log_group

SHARD: Final = "__shard__"
POSITION: Final = "__position__"
LEVELS: Final = ("level", "severity", "severity_text", "levelname", "log.level")
"""Where a record says how bad it is."""
MESSAGES: Final = ("message", "msg", "content", "body", "log")
_NS: Final = 1_000_000_000
_PLAIN: Final = re.compile(r"[^\s\"'=]+")


class ShownRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record and where it stands."""

    shard: int
    position: str
    time_ns: int
    topic: str
    source: str
    tags: dict[str, str]
    fields: dict[str, str]

    @property
    def time(self) -> str:
        """Its own, to the millisecond."""
        seconds, nanoseconds = divmod(self.time_ns, _NS)
        moment = datetime.fromtimestamp(seconds, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1_000_000:03}Z"

    def value(self, name: str) -> str | None:
        """A field, or what the record has beside its fields."""
        if name in self.fields:
            return self.fields[name]
        if name.startswith(TAG_PREFIX):
            return self.tags.get(name.removeprefix(TAG_PREFIX))
        own = {
            TIME: self.time,
            TOPIC: self.topic,
            SOURCE: self.source,
            SHARD: str(self.shard),
            POSITION: self.position,
        }
        return own.get(name)

    def plain(self) -> dict[str, Any]:
        return {
            "shard": self.shard,
            "position": self.position,
            "time": self.time,
            "topic": self.topic,
            "source": self.source,
            "tags": self.tags,
            "fields": self.fields,
        }


def records_of(shard: int, batch: StoredBatch) -> Iterator[ShownRecord]:
    """All records of a stored batch, in order."""
    head = decode_head(batch.data)
    body = memoryview(batch.data)[HEAD_BYTES:]
    raw = decompress(body, head.codec, raw_bytes=head.raw_bytes)
    if head.format is Format.ARROW:
        groups = arrow_to_log_groups(raw, received_s=head.received_ms // 1000)
    else:
        groups = [bytes(raw)]
    for group in map(decode_log_group, groups):
        shared = {
            "shard": shard,
            "position": str(batch.position),
            "topic": _text(group.Topic),
            "source": _text(group.Source),
            "tags": {_text(each.Key): _text(each.Value) for each in group.LogTags},
        }
        for log in group.Logs:
            fields = {_text(each.Key): _text(each.Value) for each in log.Contents}
            time_ns = log.Time * _NS + min(log.Time_ns, _NS - 1)
            yield ShownRecord(time_ns=time_ns, fields=fields, **shared)


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted."""

    pattern: re.Pattern[str] | None = None
    """Found in some value."""
    where: tuple[tuple[str, str], ...] = ()
    """Name and value; all have to be so."""

    def takes(self, record: ShownRecord) -> bool:
        if any(record.value(name) != value for name, value in self.where):
            return False
        pattern = self.pattern
        return pattern is None or any(map(pattern.search, record.fields.values()))


def line_of(record: ShownRecord) -> tuple[str, str, str]:
    """For people: the time, the level where there is one, and all the rest."""
    fields = dict(record.fields)
    level = next((fields.pop(name) for name in LEVELS if name in fields), "")
    message = next((fields.pop(name) for name in MESSAGES if name in fields), None)
    parts = [] if message is None else [escaped(message)]
    parts += [f"{escaped(name)}={_quoted(value)}" for name, value in fields.items()]
    return record.time, escaped(level), " ".join(parts)


def fields_of(record: ShownRecord, names: Sequence[str]) -> dict[str, str | None]:
    """Those that were asked for, in that order."""
    return {name: record.value(name) for name in names}


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return escaped(value)
    return escaped(msgspec.json.encode(value).decode())
