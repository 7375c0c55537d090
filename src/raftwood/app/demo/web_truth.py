"""What is known of the lines that were made, counted line by line without Spark."""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

_LINE: Final = re.compile(r'\[([^\]]+)\] "[^"]*" ([0-9]+) ([0-9]+) ')


class MinuteCount(msgspec.Struct):
    """Figures of one minute."""

    requests: int = 0
    errors: int = 0
    bytes: int = 0


class WebTruth:
    """Give it each line; minutes are named as the aggregate names its windows."""

    def __init__(self) -> None:
        self.minutes: dict[str, MinuteCount] = {}
        self._names: dict[str, str] = {}

    def add(self, line: str) -> None:
        found = _LINE.search(line)
        assert found is not None, f"not a line of a web server: {line!r}"
        time, status, size = found.groups()
        minute = self.minutes.setdefault(self._name(time), MinuteCount())
        minute.requests += 1
        minute.errors += status >= "500"
        minute.bytes += int(size)

    def _name(self, time: str) -> str:
        start = time[:17]
        name = self._names.get(start)
        if name is None:
            moment = datetime.strptime(time, "%d/%b/%Y:%H:%M:%S.%f %z").astimezone(UTC)
            name = self._names[start] = f"{moment:%Y-%m-%d %H:%M}:00"
        return name

    @property
    def total(self) -> MinuteCount:
        minutes = self.minutes.values()
        return MinuteCount(
            sum(each.requests for each in minutes),
            sum(each.errors for each in minutes),
            sum(each.bytes for each in minutes),
        )
