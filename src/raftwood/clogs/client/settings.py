"""Settings of a shipper: how it batches, what it holds, and what it does when that is too much."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from raftwood.base.compression import CODECS, Codec
from raftwood.base.errors import InvalidConfiguration
from raftwood.base.settings import Secret, Section, describe


class WhenFull(StrEnum):
    """What happens to lines once memory is full of lines that are not stored yet."""

    SPOOL = "spool"
    """They go to the spool on disk; once that is full too, the oldest are dropped."""
    DROP_OLDEST = "drop-oldest"
    """The oldest that were never sent are dropped, and counted."""
    BLOCK = "block"
    """The caller waits until there is room."""


class SpoolMode(StrEnum):
    """Which batches are written to the spool."""

    OVERFLOW = "overflow"
    """Batches for which memory has no room, and all that is left at the end."""
    ALWAYS = "always"
    """Every batch, so that accepted lines survive a killed process."""


class Compression(StrEnum):
    """The compression of batches."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"

    @property
    def codec(self) -> Codec:
        return CODECS[self.value]


class ClogsClientSettings(Section, frozen=True):
    """The shipping client: where its configuration comes from, batches, memory and spool."""

    ring: Annotated[
        str,
        Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z", description="The ring's name."),
    ] = "default"
    servers: Annotated[
        tuple[Annotated[str, Meta(pattern=r"\A[^=\s]+:[0-9]{1,5}\Z")], ...],
        Meta(
            description="Some receivers, host:port each: they tell the ring's configuration. "
            "Where they have none, these are the ring."
        ),
    ] = ("127.0.0.1:7290",)
    configuration_file: Annotated[
        str,
        Meta(
            max_length=1024,
            description="File with the ring's configuration, read again when it changes; without "
            "it the servers are asked.",
        ),
    ] = ""
    access_key: Annotated[
        str, Meta(max_length=128, description="The id of the access key to come with.")
    ] = ""
    access_secret: Annotated[Secret, Meta(description="The secret of that access key.")] = Secret()
    authorities: Annotated[
        str,
        Meta(
            max_length=1024,
            description="File with the authorities of the servers' certificates; with it all "
            "connections use TLS.",
        ),
    ] = ""
    system: Annotated[
        int,
        Meta(ge=0, lt=1 << 32, description="A number for the application, told with each frame."),
    ] = 0
    source: Annotated[
        str, Meta(max_length=253, description="Stored as the source of lines; else the host name.")
    ] = ""
    compression: Annotated[Compression, Meta(description="Of batches.")] = Compression.LZ4
    batch_bytes_max: Annotated[
        int, Meta(ge=1 << 10, le=2 << 20, description="Lines of one batch, in bytes.")
    ] = 512 << 10
    batch_lines_max: Annotated[int, Meta(ge=1, le=100_000, description="Lines of one batch.")] = (
        16_384
    )
    line_bytes_max: Annotated[
        int, Meta(ge=64, le=1 << 20, description="A longer line is cut, and counted.")
    ] = 256 << 10
    linger_ms: Annotated[
        int,
        Meta(ge=0, le=60_000, description="How long a file's first line waits for more of them."),
    ] = 50
    memory_bytes_max: Annotated[
        int,
        Meta(
            ge=64 << 10,
            description="Lines in memory that are not stored yet; what threads have given and "
            "nobody has taken up yet may be as much again.",
        ),
    ] = 64 << 20
    when_full: Annotated[
        WhenFull, Meta(description="What happens to lines once memory is full.")
    ] = WhenFull.DROP_OLDEST
    block_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=86_400_000,
            description="With when_full as block: who gives lines waits so long, then it fails.",
        ),
    ] = 60_000
    spool_folder: Annotated[
        str, Meta(max_length=1024, description="Folder of the spool; without it there is none.")
    ] = ""
    spool: Annotated[SpoolMode, Meta(description="Which batches go to the spool.")] = (
        SpoolMode.OVERFLOW
    )
    spool_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Batches of one process in the spool; then the oldest are dropped, or "
            "who gives lines waits.",
        ),
    ] = 1 << 30
    masks: Annotated[
        tuple[str, ...], Meta(description="Built-in rules that mask what is sensitive in lines.")
    ] = ()
    request_ms: Annotated[int, Meta(ge=50, le=600_000, description="How long an ack may take.")] = (
        30_000
    )
    in_flight_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Batches under way to one server, of all files.")
    ] = 64
    file_in_flight_max: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Of these, of one file; receivers of release 0.1.0 get one at a time.",
        ),
    ] = 8
    retry_first_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="Wait after a failure; each time twice as long.")
    ] = 100
    retry_longest_ms: Annotated[
        int, Meta(ge=1, le=600_000, description="The longest wait after failures.")
    ] = 5_000
    exit_ms: Annotated[
        int,
        Meta(ge=0, le=600_000, description="At the end of the program: how long acks are awaited."),
    ] = 5_000

    def __post_init__(self) -> None:
        # Programs often pass them as plain texts and lists.
        force_setattr(self, "when_full", WhenFull(self.when_full))
        force_setattr(self, "spool", SpoolMode(self.spool))
        force_setattr(self, "compression", Compression(self.compression))
        force_setattr(self, "servers", tuple(self.servers))
        wants_spool = self.when_full is WhenFull.SPOOL or self.spool is SpoolMode.ALWAYS
        if wants_spool and not self.spool_folder:
            raise ValueError("a spool is asked for without a folder; give spool_folder")
        if self.retry_first_ms > self.retry_longest_ms:
            raise ValueError("retry_first_ms is above retry_longest_ms; lower it")


class _Sections(msgspec.Struct):
    clogs_client: ClogsClientSettings


def client_settings(values: Mapping[str, object]) -> ClogsClientSettings:
    """Checks plain data of files and keywords; `InvalidConfiguration` says what is wrong."""
    known = {setting.key: setting for setting in describe(_Sections)}
    parsed: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise InvalidConfiguration(
                f"a shipper has no setting {key!r}: choose from {', '.join(known)}"
            )
        plain = tuple(value) if isinstance(value, list) else value
        try:
            is_parsed = isinstance(plain, Secret | StrEnum)
            parsed[key] = plain if is_parsed else known[key].parse(plain)
        except ValueError as error:
            raise InvalidConfiguration(f"{known[key].name}: {error}") from None
    try:
        return ClogsClientSettings(**parsed)
    except ValueError as error:
        raise InvalidConfiguration(f"clogs_client: {error}") from None
