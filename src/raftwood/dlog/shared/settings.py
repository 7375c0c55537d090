"""How processes share logs."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Section


class DlogSharingSettings(Section, frozen=True):
    """Which gateway owns a log that is kept in DLOG, and for how long."""

    advertise: Annotated[
        str,
        Meta(
            pattern=r"\A([^=\s]+:[0-9]{1,5})?\Z",
            description="Where other gateways reach this one, host:port; else gateway.listen.",
        ),
    ] = ""
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
            description="A log that nobody appends to for so long is given back.",
        ),
    ] = 300_000
    timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="How long an append may wait for the log's owner and its bookies.",
        ),
    ] = 15_000
