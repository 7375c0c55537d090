"""What Spark is told to do, and what it answers: lines of JSON to and from `spark_work`."""

from typing import Final

import msgspec

NOTHING: Final = "noop"
"""Spark's sink that takes whole rows and drops them."""


READ: Final = "raftwood.read"
"""As a format: history and tail, `options` are its arguments."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows are read from."""

    format: str
    options: dict[str, str] = {}
    path: str | None = None
    schema: str | None = None
    expressions: tuple[str, ...] = ()
    """What is made of the columns, or which ones; all as they are where there is none."""


class Scan(msgspec.Struct, frozen=True, kw_only=True, tag="scan"):
    """Read all rows; as they are, or the count and the greatest time by shard."""

    rows: Rows
    by: str | None = None
    greatest: str = ""


class Write(msgspec.Struct, frozen=True, kw_only=True, tag="write"):
    """Rows into a sink."""

    rows: Rows
    format: str
    options: dict[str, str] = {}
    path: str | None = None
    mode: str = "append"


class Archive(msgspec.Struct, frozen=True, kw_only=True, tag="archive"):
    """All of a logstore into its archive; `options` are the source's."""

    options: dict[str, str]
    uri: str


Order = Scan | Write | Archive


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What an order took; CPU is of Spark and of all its processes."""

    elapsed_s: float
    cpu_s: float
    count: int | None = None
    """Of rows, where the order counts them."""
