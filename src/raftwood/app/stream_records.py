"""Records of a logstore as commands show them: chosen, and written for people or machines."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from raftwood.base.text import escaped
from raftwood.loghub.arrow_batches import SOURCE, TAG_PREFIX, TIME, TOPIC
from raftwood.loghub.client.pulled_batches import LogRecord

LEVELS: Final = ("level", "severity", "severity_text", "levelname", "log.level")
"""Where a record may say how bad it is."""
MESSAGES: Final = ("message", "msg", "content", "body", "log")
_NS: Final = 1_000_000_000
_PLAIN: Final = re.compile(r"[^\s\"'=]+")


def text_of(value: str | bytes) -> str:
    """What is not UTF-8, as well as it can be read."""
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def time_of(record: LogRecord) -> str:
    """Its own, to the millisecond."""
    seconds, nanoseconds = divmod(record.time_ns, _NS)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1_000_000:03}Z"


_BESIDE: Final[dict[str, Callable[[LogRecord], str]]] = {
    TIME: time_of,
    TOPIC: lambda record: text_of(record.topic),
    SOURCE: lambda record: text_of(record.source),
    "__shard__": lambda record: str(record.shard),
    "__position__": lambda record: str(record.position),
}


def value_of(record: LogRecord, name: str) -> str | None:
    """A field, or what a record has beside its fields."""
    found: str | bytes | None = record.contents.get(name)
    if found is None and name.startswith(TAG_PREFIX):
        found = record.tags.get(name.removeprefix(TAG_PREFIX))
    if found is not None:
        return text_of(found)
    beside = _BESIDE.get(name)
    return None if beside is None else beside(record)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted."""

    pattern: re.Pattern[str] | None = None
    """Found in some value."""
    where: tuple[tuple[str, str], ...] = ()
    """Name and value; all have to be so."""

    def takes(self, record: LogRecord) -> bool:
        if any(value_of(record, name) != value for name, value in self.where):
            return False
        pattern = self.pattern
        return pattern is None or any(
            pattern.search(text_of(value)) for value in record.contents.values()
        )


def plain_of(record: LogRecord) -> dict[str, Any]:
    """All of it, for machines; positions are text, as JSON has no integers of 128 bits."""
    return {
        "shard": record.shard,
        "position": str(record.position),
        "time": time_of(record),
        "topic": text_of(record.topic),
        "source": text_of(record.source),
        "tags": {name: text_of(value) for name, value in record.tags.items()},
        "fields": {name: text_of(value) for name, value in record.contents.items()},
    }


def fields_of(record: LogRecord, names: Sequence[str]) -> dict[str, str | None]:
    """Those that were asked for, in that order."""
    return {name: value_of(record, name) for name in names}


def line_of(record: LogRecord) -> tuple[str, str, str]:
    """For people: the time, the level where there is one, and all the rest."""
    fields = dict(record.contents)
    level = next((fields.pop(name) for name in LEVELS if name in fields), "")
    message = next((fields.pop(name) for name in MESSAGES if name in fields), None)
    parts = [] if message is None else [escaped(text_of(message))]
    parts += [f"{escaped(name)}={_quoted(text_of(value))}" for name, value in fields.items()]
    return time_of(record), escaped(text_of(level)), " ".join(parts)


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return escaped(value)
    return escaped(msgspec.json.encode(value).decode())
