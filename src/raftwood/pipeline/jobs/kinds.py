"""The kinds of jobs that come with Raftwood, and those that users bring."""

import inspect
from importlib import import_module
from typing import Any, Final

from raftwood.base.errors import InvalidConfiguration
from raftwood.pipeline.jobs.importing import named
from raftwood.pipeline.jobs.job import Job

KINDS: Final = {
    "transform": ("transform:Transform", "SQL or Python over rows, to another stream"),
    "aggregate": ("aggregate:Aggregate", "figures over windows of event time"),
    "sessionize": ("sessionize:Sessionize", "rows of one key without a gap become one"),
    "keys": ("keys:Keys", "rows become keys and values of a table of Zeppelin"),
    "archive": ("archive:Archive", "a stream to Parquet or Delta; then truncate it"),
    "replay": ("replay:Replay", "what the log has of a time range, sent again"),
    "backfill": ("backfill:Backfill", "the same from the archive and the log"),
}
"""Name → its module here and its class, and what it does."""


def class_of(kind: str) -> type[Job[Any]]:
    """Of a kind's name, or of `module:Class`."""
    if ":" in kind:
        found = named(kind)
        if not (inspect.isclass(found) and issubclass(found, Job)):
            raise InvalidConfiguration(f"{kind!r} is no class of jobs: make it a subclass of one")
        return found
    if kind not in KINDS:
        raise InvalidConfiguration(
            f"there is no kind of job {kind!r}: give {', '.join(KINDS)}, or module:Class"
        )
    module, _, name = KINDS[kind][0].partition(":")
    chosen: type[Job[Any]] = getattr(import_module(f"raftwood.pipeline.jobs.{module}"), name)
    return chosen
