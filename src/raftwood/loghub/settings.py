"""LogHub's settings: what a gateway serves, takes and cleans up, and how clients reach it."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Secret, Section


class GatewaySettings(Section, frozen=True):
    """A gateway: where it serves, and how much it takes."""

    listen: Annotated[
        str,
        Meta(
            pattern=r"\A[^=\s]+:[0-9]{1,5}\Z",
            description="Address for native clients, host:port.",
        ),
    ] = "127.0.0.1:7200"
    advertise: Annotated[
        str,
        Meta(
            pattern=r"\A([^=\s]+:[0-9]{1,5})?\Z",
            description="Where other gateways reach this one, host:port; else gateway.listen.",
        ),
    ] = ""
    http_listen: Annotated[
        str,
        Meta(
            pattern=r"\A([^=\s]+:[0-9]{1,5})?\Z",
            description="Address for SLS clients and the other ways in over HTTP, host:port; "
            "without it HTTP is not served.",
        ),
    ] = "127.0.0.1:7280"
    http_endpoints: Annotated[
        tuple[Annotated[str, Meta(pattern=r"\A[a-z0-9.-]{1,253}\Z")], ...],
        Meta(
            description="Names of the gateways, such as logs.example.com: HTTP clients put a "
            "project before one. Of other names the first label is the project.",
        ),
    ] = ()
    keep_alive_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="How long an idle HTTP connection is kept.")
    ] = 60_000
    request_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="How long an HTTP client may take to send a request and read the answer, "
            "long polls apart.",
        ),
    ] = 30_000
    connections_max: Annotated[
        int, Meta(ge=1, le=100_000, description="HTTP connections at a time; more are refused.")
    ] = 1_024
    body_bytes_max: Annotated[
        int, Meta(ge=1 << 10, le=32 << 20, description="The largest body of an HTTP request.")
    ] = 10 << 20
    bodies_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="Of all requests under way together; more are refused for the moment.",
        ),
    ] = 256 << 20
    raw_bytes_max: Annotated[
        int,
        Meta(ge=1 << 10, le=64 << 20, description="The largest batch, once it is decompressed."),
    ] = 10 << 20
    write_bytes_per_s_max: Annotated[
        int, Meta(ge=0, description="Of each project at each gateway; 0: no limit.")
    ] = 0
    write_requests_per_s_max: Annotated[
        int, Meta(ge=0, description="Of each project at each gateway; 0: no limit.")
    ] = 0


class LogHubSettings(Section, frozen=True):
    """Streams: what is the same for all gateways of a cluster."""

    scope = "cluster"

    log_replicas: Annotated[int, Meta(ge=1, le=64, description="Replicas of each shard's log.")] = 3
    retention_ms: Annotated[
        int,
        Meta(
            ge=50,
            le=3_600_000,
            description="Shards are looked at so often, to free what is "
            "too old or too much, and to split hot ones.",
        ),
    ] = 10_000
    hot_bytes_per_s: Annotated[
        int, Meta(ge=1, description="A shard that takes more is split, where its logstore says so.")
    ] = 5 << 20
    hot_rounds: Annotated[
        int, Meta(ge=1, le=1000, description="So many rounds in a row, before it is split.")
    ] = 6
    stray_log_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=30 * 86_400_000,
            description="A log that no shard refers to, left by a gateway that died, is removed "
            "after so long, if nothing was ever put to it.",
        ),
    ] = 3_600_000


class LogHubClientSettings(Section, frozen=True):
    """How programs and commands reach LogHub; `raftwood key create` prints such a section."""

    gateways: Annotated[
        tuple[Annotated[str, Meta(pattern=r"\A[^=\s]+:[0-9]{1,5}\Z")], ...],
        Meta(description="Some gateways, host:port each; any of them will do."),
    ] = ("127.0.0.1:7200",)
    access_key: Annotated[
        str, Meta(max_length=128, description="The id of the access key to come with.")
    ] = ""
    access_secret: Annotated[Secret, Meta(description="The secret of that access key.")] = Secret()
    lease_store: Annotated[
        Secret,
        Meta(
            description="Where workers of `raftwood consume` keep their leases, as its --store; it "
            "may have a password. Else an SQLite file in the current folder."
        ),
    ] = Secret()
