"""Options that a user sets with `.option(...)`: parsed once, checked, and passed on as a struct."""

import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from raftwood.base.compression import CODECS, Codec
from raftwood.base.configuration import client_variable
from raftwood.base.errors import InvalidConfiguration
from raftwood.base.position import POSITION_MAX, Position
from raftwood.loghub.client.gateways import addresses_of
from raftwood.loghub.model import check_stream_names

KEY_VARIABLE: Final = "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY"
SECRET_VARIABLE: Final = "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET"  # noqa: S105 (its name)
GATEWAYS_VARIABLE: Final = "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS"
"""Settings that are read if no option is given: from the environment, else from the file or the
context that commands read.
"""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EARLIEST_NUMBER: Final = -2
_LATEST_NUMBER: Final = -1
"""As in the offsets of Kafka's connector."""
_Number = TypeVar("_Number", int, None)

Place = str | Position
"""`earliest`, `latest`, or a position."""
_KNOWN: Final = {
    "path",
    "gateways",
    "accesskey",
    "accesssecret",
    "project",
    "logstore",
    "startingoffsets",
    "endingoffsets",
    "startingtimestamp",
    "maxoffsetspertrigger",
    "minpartitions",
    "failondataloss",
    "includeheaders",
    "pushfilters",
    "mode",
    "archive",
    "group",
    "shards",
    "timeoutms",
    "keycolumn",
    "compression",
    "txnappid",
    "txnversion",
    "checkpointlocation",
    "queryname",
}


class ParseMode(StrEnum):
    """The treatment of a batch or a value that cannot be decoded."""

    PERMISSIVE = "PERMISSIVE"
    """The batch becomes one row with its bytes as `raw`; a value becomes null."""
    DROPMALFORMED = "DROPMALFORMED"
    """It is left out."""
    FAILFAST = "FAILFAST"
    """The query fails."""


class StreamAccess(msgspec.Struct, frozen=True, kw_only=True):
    """A logstore, and the access to it."""

    gateways: tuple[str, ...]
    access_key: str
    access_secret: str
    project: str
    logstore: str
    timeout_ms: int = 30_000
    """How long all gateways may be unreachable before a task fails."""

    def __repr__(self) -> str:
        return f"StreamAccess({self.project}/{self.logstore} at {','.join(self.gateways)})"


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, and how."""

    access: StreamAccess
    starting: str | dict[int, Place] = EARLIEST
    ending: str | dict[int, Place] = LATEST
    starting_s: int | None = None
    """A time instead of `starting`, in seconds since 1970."""
    rows_per_trigger_max: int | None = None
    partitions_min: int = 1
    fails_on_data_loss: bool = True
    includes_headers: bool = False
    pushes_filters: bool = False
    mode: ParseMode = ParseMode.PERMISSIVE
    archive: str | None = None
    """The archive that has truncated records."""
    group: str | None = None
    """A consumer group whose checkpoints follow a streaming query, so that nothing is truncated
    that it has still to read.
    """
    shards: tuple[int, ...] | None = None
    """Only these shards; None for all."""


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows go, and how."""

    access: StreamAccess
    key_column: str | None = None
    """Rows of one key go to one shard, in order."""
    codec: Codec = Codec.LZ4
    transaction: tuple[str, int] | None = None
    """An application and its version: a batch write that repeats both stores nothing twice."""


class OptionReader:
    """Reads options by name in any case, and checks their values."""

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        known: AbstractSet[str] = _KNOWN,
        name: str = "loghub",
    ) -> None:
        self._options = {option.lower(): value for option, value in options.items()}
        self._name = name
        unknown = sorted(set(self._options) - known)
        if unknown:
            raise InvalidConfiguration(
                f"{name} has no option {unknown[0]!r}: see the list in docs/pipeline.md"
            )

    def text(self, name: str, default: str | None = None, *, variable: str | None = None) -> str:
        found = self._options.get(name.lower())
        if found is None and variable is not None:
            found = client_variable(variable, os.environ)
        if found is None:
            found = default
        if found is None:
            more = "" if variable is None else f", a context, or {variable}"
            raise InvalidConfiguration(f"{self._name} needs .option({name!r}, …){more}")
        return found

    def optional(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def number(self, name: str, default: _Number, *, least: int = 1) -> int | _Number:
        found = self._options.get(name.lower())
        if found is None:
            return default
        try:
            number = int(found)
        except ValueError:
            number = least - 1
        if number < least:
            raise InvalidConfiguration(f"{name} is {found!r}: give a whole number from {least} on")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        found = self._options.get(name.lower())
        if found is None:
            return default
        if found.lower() not in ("true", "false"):
            raise InvalidConfiguration(f"{name} is {found!r}: give true or false")
        return found.lower() == "true"


def stream_access(given: OptionReader) -> StreamAccess:
    """`load("project/logstore")` also sets both names."""
    path = given.optional("path")
    project, logstore = given.optional("project"), given.optional("logstore")
    if path is not None:
        first, slash, second = path.partition("/")
        if slash:
            project, logstore = project or first, logstore or second
        else:
            logstore = logstore or first
    if project is None or logstore is None:
        raise InvalidConfiguration(
            "loghub needs .option('project', …) and .option('logstore', …), or "
            "load('project/logstore')"
        )
    check_stream_names(project, logstore)
    return StreamAccess(
        gateways=addresses_of(given.text("gateways", variable=GATEWAYS_VARIABLE)),
        access_key=given.text("accessKey", variable=KEY_VARIABLE),
        access_secret=given.text("accessSecret", variable=SECRET_VARIABLE),
        project=project,
        logstore=logstore,
        timeout_ms=given.number("timeoutMs", 30_000),
    )


def access_to(
    path: str,
    *,
    gateways: str | None = None,
    access_key: str | None = None,
    access_secret: str | None = None,
    timeout_ms: int | None = None,
) -> StreamAccess:
    """Returns the access to `project/logstore`; what is not given comes from the environment."""
    given = {
        "path": path,
        "gateways": gateways,
        "accessKey": access_key,
        "accessSecret": access_secret,
        "timeoutMs": None if timeout_ms is None else str(timeout_ms),
    }
    return stream_access(
        OptionReader({name: text for name, text in given.items() if text is not None})
    )


def source_options(options: Mapping[str, str]) -> SourceOptions:
    given = OptionReader(options)
    starting_ms = given.number("startingTimestamp", None, least=0)
    mode = given.text("mode", ParseMode.PERMISSIVE).upper()
    if mode not in ParseMode.__members__:
        raise InvalidConfiguration(f"mode is {mode!r}: give one of {', '.join(ParseMode)}")
    return SourceOptions(
        access=stream_access(given),
        starting=offsets_option("startingOffsets", given.text("startingOffsets", EARLIEST)),
        ending=offsets_option("endingOffsets", given.text("endingOffsets", LATEST)),
        starting_s=None if starting_ms is None else starting_ms // 1000,
        rows_per_trigger_max=given.number("maxOffsetsPerTrigger", None),
        partitions_min=given.number("minPartitions", 1),
        fails_on_data_loss=given.flag("failOnDataLoss", default=True),
        includes_headers=given.flag("includeHeaders", default=False),
        pushes_filters=given.flag("pushFilters", default=False),
        mode=ParseMode(mode),
        archive=given.optional("archive"),
        group=given.optional("group"),
        shards=_shards(given.optional("shards")),
    )


def _shards(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidConfiguration(
            f"shards is {text[:60]!r}: give their numbers, such as 0,3"
        ) from error


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    given = OptionReader(options)
    compression = given.text("compression", "lz4").lower()
    if compression not in CODECS:
        raise InvalidConfiguration(f"compression is {compression!r}: give none, lz4 or zstd")
    return SinkOptions(
        access=stream_access(given),
        key_column=given.optional("keyColumn"),
        codec=CODECS[compression],
        transaction=transaction_of(given),
    )


def transaction_of(given: OptionReader) -> tuple[str, int] | None:
    """Returns the application and the version of a batch write."""
    application, version = given.optional("txnAppId"), given.number("txnVersion", None, least=0)
    if (application is None) != (version is None):
        raise InvalidConfiguration("txnAppId and txnVersion go together: give both, or neither")
    return None if application is None else (f"txn-{application}", int(version or 0))


def offsets_option(name: str, text: str) -> str | dict[int, Place]:
    """Parses `earliest`, `latest`, or JSON such as {"0": "1234", "1": "earliest"}."""
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        found = msgspec.json.decode(text.encode(), type=dict[str, object])
        inner = found.get("shards", found)
        shards = msgspec.convert(inner, dict[int, int | str], strict=False)
        return {shard: _place(place) for shard, place in shards.items()}
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidConfiguration(
            f"{name} is {text[:60]!r}: give earliest, latest, or JSON such as "
            '{"0": "1234", "1": "earliest"}'
        ) from error


def _place(given: int | str) -> Place:
    if given in (EARLIEST, _EARLIEST_NUMBER, str(_EARLIEST_NUMBER)):
        return EARLIEST
    if given in (LATEST, _LATEST_NUMBER, str(_LATEST_NUMBER)):
        return LATEST
    position = int(given)
    if not 0 <= position <= POSITION_MAX:
        raise ValueError(given)
    return Position(position)
