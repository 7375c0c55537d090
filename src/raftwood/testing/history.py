"""Histories: clients' operations and their outcomes, kept as JSON lines for the checkers.

An operation is `ok`, `failed` (certainly not carried out) or `unknown`: a time-out says nothing
about what the server did.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from raftwood.base.errors import (
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    InternalError,
    RaftwoodError,
)

OperationOutcome: TypeAlias = Literal["ok", "failed", "unknown"]
Result = TypeVar("Result")
_TICK = 1e-9


class Event(msgspec.Struct, kw_only=True):
    """One operation of one client; times of all clients are comparable and differ."""

    client: str
    operation: str
    key: str = ""
    input: Any = None
    output: Any = None
    called: float
    returned: float | None = None
    """None if no answer came."""
    outcome: OperationOutcome = "unknown"

    def describe(self) -> str:
        until = "…" if self.returned is None else f"{self.returned:.6f}"
        result = f" -> {self.output!r}" if self.outcome == "ok" else f" ({self.outcome})"
        return (
            f"[{self.called:.6f} to {until}] {self.client}: {self.operation}"
            f" {self.key} {self.input!r}{result}"
        )


class History:
    """Collects events while clients run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.events: list[Event] = []
        self._clock = clock
        self._last = float("-inf")

    def _time(self) -> float:
        """Returns the time, later than any before: order matters while the clock stands still."""
        self._last = max(self._clock(), self._last + _TICK)
        return self._last

    def call(self, client: str, operation: str, given: Any = None, *, key: str = "") -> Event:
        event = Event(client=client, operation=operation, key=key, input=given, called=self._time())
        self.events.append(event)
        return event

    def finish(self, event: Event, outcome: OperationOutcome, output: Any = None) -> None:
        event.outcome = outcome
        event.output = output
        if outcome != "unknown":
            event.returned = self._time()

    async def run(
        self,
        client: str,
        operation: str,
        work: Awaitable[Result],
        *,
        given: Any = None,
        key: str = "",
        output: Callable[[Result], Any] | None = None,
    ) -> Result | None:
        """Awaits the work and records its outcome; returns None if it did not succeed."""
        event = self.call(client, operation, given, key=key)
        try:
            result = await work
        except (RaftwoodError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.finish(event, classify(error))
            return None
        self.finish(event, "ok", result if output is None else output(result))
        return result


def classify(error: BaseException) -> OperationOutcome:
    """Classifies an operation that ended in an error as failed or unknown.

    In doubt it is unknown. A checker that takes an operation for failed which the store carried out
    reports a violation that is none.
    """
    if isinstance(error, ConnectionRefusedError):
        return "failed"
    if isinstance(error, (ConnectionLost, DeadlineExceeded, Cancelled, InternalError)):
        return "unknown"
    return "failed" if isinstance(error, RaftwoodError) else "unknown"


def write_history(path: str | os.PathLike[str], events: Iterable[Event]) -> None:
    """Writes one line of JSON per event, in order of the calls."""
    encoder = msgspec.json.Encoder()
    with open(path, "wb") as file:
        file.writelines(
            encoder.encode(event) + b"\n" for event in sorted(events, key=lambda each: each.called)
        )


def read_history(path: str | os.PathLike[str]) -> list[Event]:
    """Reads the lines of `write_history`."""
    decoder = msgspec.json.Decoder(Event)
    with open(path, "rb") as file:
        return [decoder.decode(line) for line in file if line.strip()]
