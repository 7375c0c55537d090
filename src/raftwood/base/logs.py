"""A node's own log lines: structured, to stderr, as text for people or JSON lines for machines.

    set_up_logs(LoggingSettings(level="debug"), clock=SystemClock())
    bind_context(store=3)
    log = get_logger("raft")
    log.info("elected", term=7)

Outside text can neither forge a line nor move a terminal's cursor: control characters are escaped.
Values under a key of a secret are masked. The time comes from the given clock, in simulation the
simulated one; without a clock lines carry no time.
"""

import datetime
import logging
import os
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import msgspec
import structlog

from raftwood.base.environment import Clock
from raftwood.base.settings import HIDDEN, LoggingSettings, Secret
from raftwood.base.text import escaped

Logger = structlog.typing.FilteringBoundLogger
_Event = MutableMapping[str, Any]

TEXT_CHARACTERS_MAX: Final = 8192
"""A longer text is cut: one value must not flood the log."""

_DEPTH_MAX: Final = 4
_SECRET_KEY: Final = re.compile(
    r"passw|secret|token|credential|authorization|api_?key|private_?key|access_?key|cookie",
    re.IGNORECASE,
)


def get_logger(name: str) -> Logger:
    """Returns a logger of one part of the program, made at import time or later.

    `bind` adds values to all its lines; call it after `set_up_logs`, as it fixes the set-up.
    """
    logger: Logger = structlog.get_logger(part=name)
    return logger


def bind_context(**values: Any) -> None:
    """Adds values (such as a node's id) to every line of this task and of those it starts."""
    structlog.contextvars.bind_contextvars(**values)


def set_up_logs(
    settings: LoggingSettings, *, clock: Clock | None, stream: TextIO | None = None
) -> None:
    """Sets up, once per process, the format of log lines and their stream (stderr)."""
    terminal = (stream or sys.stderr).isatty()
    text = settings.format == "text" or (settings.format == "auto" and terminal)
    colours = terminal and not os.environ.get("NO_COLOR")

    def stamp(_logger: Any, _method: str, event: _Event) -> _Event:
        if clock is not None:
            event["time"] = _utc(clock.wall_ns())
        return event

    render: structlog.typing.Processor = _json_line
    if text:
        # The default formatter of exceptions would print local variables, secrets among them.
        render = structlog.dev.ConsoleRenderer(
            colors=colours,
            sort_keys=False,
            timestamp_key="time",
            exception_formatter=structlog.dev.plain_traceback,
        )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamp,
            structlog.processors.format_exc_info,
            clean,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[settings.level.upper()]
        ),
        # Without a given stream, lines go to what is standard error at that moment.
        logger_factory=lambda *_: structlog.WriteLogger(stream or sys.stderr),
        # Tests and simulations set up again; a cached logger would keep the stream of the first.
        cache_logger_on_first_use=False,
    )


def clean(_logger: Any, _method: str, event: _Event) -> _Event:
    """Masks secrets, escapes control characters, and bounds every value of a line."""
    return {_escape(str(key)): _clean(value, str(key), 0) for key, value in event.items()}


def _clean(value: Any, key: str, depth: int) -> Any:
    if isinstance(value, Secret) or _SECRET_KEY.search(key):
        return HIDDEN
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        # A traceback's line breaks are its own; each line is indented, so none looks like an event.
        if key == "exception":
            return "\n    ".join(_escape(line) for line in value.splitlines())
        return _escape(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _escape(repr(bytes(value[:256])))
    if depth < _DEPTH_MAX:
        if isinstance(value, dict):
            return {
                _escape(str(name)): _clean(item, str(name), depth + 1)
                for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [_clean(item, key, depth + 1) for item in value]
        if isinstance(value, msgspec.Struct):
            return _clean(msgspec.structs.asdict(value), key, depth + 1)
    return _escape(repr(value))


def _escape(text: str) -> str:
    if len(text) > TEXT_CHARACTERS_MAX:
        text = f"{text[:TEXT_CHARACTERS_MAX]}… ({len(text)} characters)"
    return escaped(text)


def _utc(wall_ns: int) -> str:
    seconds, nanoseconds = divmod(wall_ns, 10**9)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1000:06d}Z"


def _json_line(_logger: Any, _method: str, event: _Event) -> str:
    return msgspec.json.encode(event).decode()


if not structlog.is_configured():
    # Until a program sets logs up, only warnings and errors appear, and on stderr: standard output
    # belongs to the command.
    set_up_logs(LoggingSettings(level="warning", format="text"), clock=None)
