"""Settings of DLOG: writing and reading logs, where ledgers are kept, and which process owns a log.

Settings of a single log are in its `LogConfig`.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from raftwood.base.settings import Scope, Section
from raftwood.dlog.ledgers.metadata import Digest, LedgerConfig
from raftwood.dlog.log.meta import LogConfig
from raftwood.net.tls import TlsFiles


class DlogSettings(Section, frozen=True):
    """How a process writes and reads DLOGs."""

    scope: ClassVar[Scope] = "node"
    entry_bytes: Annotated[
        int,
        Meta(ge=1, le=12 << 20, description="Messages share an entry up to about so many bytes."),
    ] = 256 << 10
    message_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=12 << 20,
            description="The largest message; BookKeeper's bookies take entries below 5 MiB.",
        ),
    ] = (4 << 20) + (64 << 10)
    """A batch of 4 MiB, LogHub's largest, and its heads."""
    entries_in_flight_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Entries of one log that wait for their ack.")
    ] = 256
    messages_in_flight_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Messages of one log that wait; more are refused."),
    ] = 16_384
    bytes_in_flight_max: Annotated[
        int, Meta(ge=1, le=1 << 30, description="Bytes of one log that wait; more are refused.")
    ] = 64 << 20
    preallocates: Annotated[
        bool, Meta(description="Whether the next ledger is made before it is needed.")
    ] = True
    open_timeout_ms: Annotated[
        int,
        Meta(
            ge=1, le=3_600_000, description="How long a take-over, a rotation or the end may take."
        ),
    ] = 60_000
    pause_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="Before the first retry; later ones wait longer.")
    ] = 20
    pause_max_ms: Annotated[
        int, Meta(ge=1, le=60_000, description="The longest pause before a retry.")
    ] = 1_000
    read_ahead_bytes: Annotated[
        int, Meta(ge=1, le=1 << 30, description="What a reader fetches before it is asked for.")
    ] = 1 << 20
    cache_bytes: Annotated[
        int, Meta(ge=0, le=1 << 40, description="Entries kept in memory, for all readers.")
    ] = 64 << 20


LedgerStoreKind = Literal["", "bookies", "bookkeeper"]


class SharedDlogSettings(Section, frozen=True):
    """DLOG: where ledgers are kept, how new ones are replicated, and the lease of a log's owner."""

    scope = "cluster"

    store: Annotated[
        LedgerStoreKind,
        Meta(
            description="Where ledgers are kept: bookies (those of the metastore), or bookkeeper; "
            "without it, gateways take no logstores that are kept in DLOG."
        ),
    ] = ""
    bookkeeper: Annotated[
        str,
        Meta(
            max_length=1024,
            description="The ZooKeeper of Apache BookKeeper, HOST:PORT[,HOST:PORT][/chroot].",
        ),
    ] = ""
    bookkeeper_authorities: Annotated[
        str,
        Meta(
            max_length=1024,
            description="PEM file of the authorities that signed BookKeeper's bookies' "
            "certificates; with it connections to them are encrypted.",
        ),
    ] = ""
    bookkeeper_certificate: Annotated[
        str,
        Meta(
            max_length=1024,
            description="PEM file of the certificate to show to bookies that ask for one.",
        ),
    ] = ""
    bookkeeper_key: Annotated[
        str,
        Meta(
            max_length=1024,
            description="PEM file of that certificate's key; without it, it is in the same file.",
        ),
    ] = ""
    bookkeeper_racks: Annotated[
        tuple[Annotated[str, Meta(pattern=r"\A[^=\s]+=[^=\s]+\Z")], ...],
        Meta(
            max_length=1024,
            description="Racks of BookKeeper's bookies, BOOKIE=RACK: copies go to several.",
        ),
    ] = ()
    offload: Annotated[
        str,
        Meta(
            max_length=1024,
            description="A folder or URI (s3://…, gs://…, hdfs://…) that closed ledgers are moved "
            "to, all but the last two of a log.",
        ),
    ] = ""
    ensemble: Annotated[int, Meta(ge=1, le=64, description="Bookies of a new ledger.")] = 3
    write_quorum: Annotated[int, Meta(ge=1, le=64, description="Copies of each entry.")] = 3
    ack_quorum: Annotated[
        int, Meta(ge=1, le=64, description="Copies that are durable when an append is acked.")
    ] = 2
    digest: Annotated[
        Literal["crc32c", "crc32", "mac", "dummy"],
        Meta(description="How entries are protected on their way through bookies."),
    ] = "crc32c"
    rotation_entries: Annotated[
        int, Meta(ge=1, description="A ledger of so many entries has a successor.")
    ] = 1_000_000
    rotation_bytes: Annotated[
        int, Meta(ge=1, description="A ledger of so many bytes has a successor.")
    ] = 256 << 20
    rotation_ms: Annotated[
        int, Meta(ge=1, description="A ledger that is so old has a successor.")
    ] = 24 * 3_600_000
    lease_ms: Annotated[
        int,
        Meta(
            ge=500,
            le=60_000,
            description="A gateway that is not heard of for so long loses its logs to others.",
        ),
    ] = 3_000
    idle_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=86_400_000,
            description="A log that nobody appends to or waits at for so long is given back.",
        ),
    ] = 300_000
    upkeep_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            le=86_400_000,
            description="How often a gateway frees what logs retain no longer, and lost ledgers, "
            "and offloads others.",
        ),
    ] = 600_000
    timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="How long an append may wait for the log's owner and its bookies.",
        ),
    ] = 15_000

    def __post_init__(self) -> None:
        self.log_config()

    def racks(self) -> dict[str, str]:
        """The racks of BookKeeper's bookies."""
        return dict(each.split("=", 1) for each in self.bookkeeper_racks)

    def bookkeeper_files(self) -> TlsFiles | None:
        """The TLS files for bookies; None if connections to bookies are not encrypted."""
        if not self.bookkeeper_authorities:
            return None
        return TlsFiles(
            authorities=self.bookkeeper_authorities,
            certificate=self.bookkeeper_certificate or None,
            key=self.bookkeeper_key or None,
        )

    def log_config(self) -> LogConfig:
        """The configuration of new logs."""
        return LogConfig(
            ledger=LedgerConfig(
                ensemble=self.ensemble,
                write_quorum=self.write_quorum,
                ack_quorum=self.ack_quorum,
                digest=Digest(self.digest),
            ),
            entries_max=self.rotation_entries,
            bytes_max=self.rotation_bytes,
            age_max_ms=self.rotation_ms,
        )
