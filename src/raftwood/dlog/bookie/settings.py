"""Settings of a bookie, and of its clients."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Section


class BookieSettings(Section, frozen=True):
    """Settings of one bookie."""

    data_folder: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="Folder that holds all of this bookie's entries; no other may use it.",
        ),
    ] = "raftwood-bookie"
    listen: Annotated[
        str,
        Meta(
            pattern=r"\A[^=\s]+:[0-9]{1,5}\Z",
            description="Address to serve on, host:port.",
        ),
    ] = "127.0.0.1:3181"
    advertise: Annotated[
        str,
        Meta(
            pattern=r"\A([^=\s]+:[0-9]{1,5})?\Z",
            description="Address at which clients reach this bookie, and its id for ever; without "
            "it bookie.listen.",
        ),
    ] = ""
    rack: Annotated[
        str,
        Meta(
            max_length=128,
            description="Failure domain, such as a host or a rack: copies go to several of them.",
        ),
    ] = ""
    lease_ms: Annotated[
        int,
        Meta(
            ge=500,
            le=600_000,
            description="A bookie that was not heard of for so long is no longer offered.",
        ),
    ] = 10_000
    garbage_interval_ms: Annotated[
        int,
        Meta(ge=10, description="Between two looks for entries of ledgers that were deleted."),
    ] = 60_000
    rereplicate_after_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="The entries of a bookie that was away for so long are copied to others, "
            "and those of one that began anew back to it; 0: never by itself.",
        ),
    ] = 600_000
    waits_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Readers that wait for more at a time.")
    ] = 10_000

    @property
    def id(self) -> str:
        """The bookie's id."""
        return self.advertise or self.listen


class BookieClientSettings(Section, frozen=True):
    """Settings of a client of bookies."""

    connect_timeout_ms: Annotated[
        int, Meta(ge=10, le=600_000, description="How long a bookie may take to be connected.")
    ] = 2_000
    request_timeout_ms: Annotated[
        int,
        Meta(ge=10, le=600_000, description="How long a bookie may take to answer."),
    ] = 5_000
    connections_max: Annotated[
        int, Meta(ge=1, le=10_000, description="Bookies that are connected at a time.")
    ] = 256
    unsent_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Bytes of entries under way to one bookie before more are refused.",
        ),
    ] = 64 << 20
