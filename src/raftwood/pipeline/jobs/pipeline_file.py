"""A pipeline as a TOML file: access to LogHub and Spark, and jobs in the order in which they run.

    folder = "web-pipeline"

    [loghub]
    gateways = "127.0.0.1:7401"

    [jobs.errors]
    kind = "transform"
    from = "web/access"
    to = "web/errors"
    sql = "SELECT time, contents FROM input WHERE contents['status'] >= 500"

A file is checked as a whole before anything runs. `KINDS` are the kinds of jobs that come with
Raftwood; users may add others.
"""

import inspect
import os
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import msgspec

from raftwood.base.configuration import client_variable
from raftwood.base.errors import InvalidConfiguration
from raftwood.base.names import checked_name
from raftwood.pipeline.jobs.job import Job, JobAccess, named
from raftwood.pipeline.zeppelin_options import ADDRESSES_VARIABLE, PASSWORD_VARIABLE, USER_VARIABLE

KINDS: Final = {
    "transform": ("transform:Transform", "SQL or Python over rows, to another stream"),
    "aggregate": ("aggregate:Aggregate", "figures over windows of event time"),
    "sessionize": ("sessionize:Sessionize", "rows of one key without a gap become one"),
    "keys": ("transform:Keys", "rows become keys and values of a table of Zeppelin"),
    "archive": ("archive:Archive", "a stream to Parquet or Delta; then truncate it"),
    "replay": ("replay:Replay", "what the log has of a time range, sent again"),
    "backfill": ("replay:Backfill", "the same from the archive and the log"),
}
"""Name → its module here and its class, and what it does."""


def class_of(kind: str) -> type[Job[Any]]:
    """Returns the class of a kind's name, or of `module:Class`."""
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


ADDRESSES: Final = {
    "gateways": "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS",
    "access_key": "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY",
    "access_secret": "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET",
}
"""The source of values that a file's [loghub] leaves out: the same as for all commands."""
TABLE: Final = {
    "addresses": ADDRESSES_VARIABLE,
    "user": USER_VARIABLE,
    "password": PASSWORD_VARIABLE,
}
"""The same for [zeppelin], which jobs that write there need."""


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where Spark runs, and its settings."""

    master: str = "local[2,4]"
    """The second number is how often a task is tried."""
    settings: dict[str, str] = {}
    """Spark's own settings, such as `"spark.sql.shuffle.partitions" = "8"`."""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    folder: str = ""
    loghub: dict[str, str] = {}
    zeppelin: dict[str, str] = {}
    spark: SparkOptions = SparkOptions()
    jobs: dict[str, dict[str, Any]]


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, and what they share."""

    name: str
    folder: str
    """The parent of each job's own folder."""
    spark: SparkOptions
    jobs: list[Job[Any]]

    def chosen(self, names: tuple[str, ...]) -> list[Job[Any]]:
        """Returns the named jobs, in the order of the file; all if no name is given."""
        known = {job.name for job in self.jobs}
        for name in names:
            if name not in known:
                raise InvalidConfiguration(
                    f"pipeline {self.name!r} has no job {name!r}: it has {', '.join(sorted(known))}"
                )
        return [job for job in self.jobs if not names or job.name in names]


def read_pipeline(
    path: str, environment: Mapping[str, str] = os.environ, *, needs_access: bool = True
) -> Pipeline:
    """Reads a pipeline; `InvalidConfiguration` names the file, the job and the mistake. A caller
    that only lists jobs needs no access.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error.strerror}") from error
    return pipeline_of(data, path, environment, needs_access=needs_access)


def pipeline_of(
    data: bytes,
    path: str,
    environment: Mapping[str, str] = os.environ,
    *,
    needs_access: bool = True,
) -> Pipeline:
    """Parses the text of a file; relative paths in it are beside the file."""
    try:
        found = msgspec.convert(tomllib.loads(data.decode()), _File)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidConfiguration(f"{path}: {error}") from error
    beside = os.path.dirname(os.path.abspath(path))
    if beside not in sys.path:
        sys.path.append(beside)  # for functions and classes of the user's own
    name = os.path.basename(path).removesuffix(".toml")
    folder = os.path.join(beside, found.folder or f"{name}-pipeline")
    access = _access(found, path, environment, needs_access=needs_access)
    jobs = [
        _job(each, options, path, access=access, folder=f"{folder}/{each}", base=beside)
        for each, options in found.jobs.items()
    ]
    return Pipeline(name=name, folder=folder, spark=found.spark, jobs=jobs)


def _access(
    file: _File, path: str, environment: Mapping[str, str], *, needs_access: bool
) -> JobAccess:
    for section, given, known in (
        ("loghub", file.loghub, ADDRESSES),
        ("zeppelin", file.zeppelin, TABLE),
    ):
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise InvalidConfiguration(f"{path}: [{section}] has no {unknown[0]!r}")
    values = {}
    for name, variable in ADDRESSES.items():
        value = file.loghub.get(name) or client_variable(variable, environment) or ""
        if needs_access and not value:
            raise InvalidConfiguration(
                f"{path}: say {name} in [loghub], or set {variable}, or use a context that has "
                "it, as `raftwood standalone` writes one"
            )
        values[name] = value
    table = {
        name: file.zeppelin.get(name) or client_variable(variable, environment) or ""
        for name, variable in TABLE.items()
    }
    return JobAccess(**values, zeppelin={name: text for name, text in table.items() if text})


def _job(
    name: str, options: dict[str, Any], path: str, *, access: JobAccess, folder: str, base: str
) -> Job[Any]:
    checked_name("job", name)
    kind = options.get("kind")
    if not isinstance(kind, str):
        raise InvalidConfiguration(f"{path}: job {name!r} has no kind")
    found = class_of(kind)
    try:
        converted = msgspec.convert(options, found.options_type)
    except msgspec.ValidationError as error:
        raise InvalidConfiguration(f"{path}: job {name!r}: {error}") from error
    return found(name, converted, access=access, folder=folder, base=base)
