"""When a job runs: once over what is there, or again and again."""

import re
from typing import Any, Final

import msgspec

from raftwood.base.errors import InvalidConfiguration

AVAILABLE_NOW: Final = "available-now"
ONCE: Final = "once"
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(second|minute|hour|day)s?\s*")


class Trigger(msgspec.Struct, frozen=True):
    """`interval_s` is None for a job that ends once what was there is done."""

    text: str
    interval_s: float | None = None

    def spark_arguments(self) -> dict[str, Any]:
        """For `DataStreamWriter.trigger`."""
        if self.interval_s is not None:
            return {"processingTime": self.text}
        return {"once": True} if self.text == ONCE else {"availableNow": True}


def parse_trigger(text: str) -> Trigger:
    if text in (AVAILABLE_NOW, ONCE):
        return Trigger(text)
    try:
        return Trigger(text, duration_s(text))
    except InvalidConfiguration as error:
        raise InvalidConfiguration(
            f"trigger {text!r}: give {AVAILABLE_NOW}, {ONCE}, or an interval such as '10 seconds'"
        ) from error


def duration_s(text: str) -> float:
    """Of `90 seconds`, `1 minute`, `2 hours`, `1 day`."""
    found = _DURATION.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        raise InvalidConfiguration(f"{text!r} is no time span: give one such as '90 seconds'")
    return float(found[1]) * _SECONDS[found[2]]
