"""Settings of Zeppelin: of its client, its meta server, its nodes and their storage."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Secret, Section
from raftwood.zeppelin.replication.copy_pace import CopyLimits


class ZeppelinClientSettings(Section, frozen=True):
    """Where nodes are, and the user of a table to log in as; the user chooses the table."""

    addresses: Annotated[
        tuple[Annotated[str, Meta(pattern=r"\A[^=\s]+:[0-9]{1,5}\Z")], ...],
        Meta(description="Some nodes, host:port each, as Redis's clients reach them."),
    ] = ("127.0.0.1:6379",)
    user: Annotated[str, Meta(max_length=128, description="The user of a table.")] = "default"
    password: Annotated[Secret, Meta(description="The password of that user.")] = Secret()
    authorities: Annotated[
        str,
        Meta(
            max_length=1024,
            description="File with the authorities that signed the nodes' certificates; the client "
            "connects with TLS if it is given.",
        ),
    ] = ""
    timeout_ms: Annotated[
        int,
        Meta(ge=1, le=3_600_000, description="For so long a request is tried again."),
    ] = 30_000


class ZeppelinMetaSettings(Section, frozen=True):
    """Timing of Zeppelin's meta server; the same on all stores, so that a new leader plans alike.

    Only plans depend on them: replicas with different settings still agree.
    """

    scope = "cluster"

    heartbeat_ms: Annotated[int, Meta(ge=10, le=60_000, description="Nodes report so often.")] = 500
    lease_ms: Annotated[
        int, Meta(ge=20, description="A master serves for so long without a new heartbeat.")
    ] = 2_000
    down_ms: Annotated[
        int, Meta(ge=30, description="Silence after which a node's partitions go to others.")
    ] = 3_000
    plan_ms: Annotated[
        int, Meta(ge=5, le=10_000, description="What comes within this time is one change.")
    ] = 100
    handover_close_bytes: Annotated[
        int, Meta(ge=0, description="A slave so close behind may have its master frozen for it.")
    ] = 1 << 20
    handover_stuck_ms: Annotated[
        int, Meta(ge=10, description="Writes wait so long for a hand-over before it is given up.")
    ] = 1_000
    handover_every_ms: Annotated[
        int, Meta(ge=0, description="Between the beginnings of two hand-overs.")
    ] = 500
    handovers_max: Annotated[int, Meta(ge=0, le=1_000, description="Hand-overs at a time.")] = 4
    handover_pause_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="A partition is left alone so long at the most after a hand-over in vain.",
        ),
    ] = 30_000
    migrations_max: Annotated[
        int, Meta(ge=0, le=1_000, description="Replicas that move to other nodes at a time.")
    ] = 8
    migrations_per_node_max: Annotated[
        int, Meta(ge=1, description="Of them those that one node sends as master, or gets.")
    ] = 2
    target_gone_ms: Annotated[
        int, Meta(ge=30, description="A replica that moves to a silent node begins anew then.")
    ] = 60_000
    catch_up_look_ms: Annotated[
        int, Meta(ge=100, description="How fast a replica that moves catches up is seen in this.")
    ] = 5_000
    catch_up_ms_max: Annotated[
        int, Meta(ge=0, description="Where the rest would take longer, writers are slowed down.")
    ] = 600_000
    slowdown_ms_max: Annotated[
        int, Meta(ge=10, description="Writers are slowed down so long, then left alone as long.")
    ] = 60_000

    def __post_init__(self) -> None:
        if 5 * self.lease_ms > 4 * self.down_ms:
            # Clocks that count at slightly different speeds must not matter.
            raise ValueError("lease_ms is above 4/5 of down_ms; make it shorter")
        if 2 * self.heartbeat_ms > self.lease_ms:
            raise ValueError("heartbeat_ms is above half of lease_ms; make it shorter")
        if 2 * self.heartbeat_ms > self.down_ms - self.lease_ms:
            # So that slaves hear from the leader after the end of their master's lease, and report
            # after that, before the judgement.
            raise ValueError("heartbeat_ms is above half of down_ms - lease_ms; make it shorter")


_ADDRESS = r"\A[^=\s]+:[0-9]{1,5}\Z"


class ZeppelinNodeSettings(Section, frozen=True):
    """One node: where its data is, and where it is reached."""

    data_folder: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="Folder that holds all of this node's partitions; no other may use it.",
        ),
    ] = "raftwood-kv"
    listen: Annotated[
        str,
        Meta(pattern=_ADDRESS, description="Address for clients of Redis, host:port."),
    ] = "127.0.0.1:6379"
    replication_listen: Annotated[
        str, Meta(pattern=_ADDRESS, description="Address for other nodes, host:port.")
    ] = "127.0.0.1:16379"
    admin_listen: Annotated[
        str, Meta(pattern=_ADDRESS, description="Address for operators, host:port.")
    ] = "127.0.0.1:26379"
    advertise_host: Annotated[
        str,
        Meta(
            max_length=256,
            pattern=r"\A[^=\s]*\Z",
            description="Host at which clients, other nodes and operators reach this node; without "
            "it that of each address.",
        ),
    ] = ""
    failure_domain: Annotated[
        str,
        Meta(
            max_length=128,
            description="Such as a host or a rack: a partition's replicas go to several of them.",
        ),
    ] = ""
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Clients that are connected at a time.")
    ] = 10_000
    copy_latency_ms: Annotated[
        int,
        Meta(
            ge=1,
            description="Copies of partitions slow down while clients wait longer than this, and "
            "than twice of what they do without any.",
        ),
    ] = 10
    copy_bytes_per_s_min: Annotated[
        int, Meta(ge=1 << 10, description="Copies are not slowed down below this, in all.")
    ] = 2 << 20
    copy_bytes_per_s_max: Annotated[
        int, Meta(ge=1 << 10, description="Copies are not faster than this, in all.")
    ] = 512 << 20

    def __post_init__(self) -> None:
        if self.copy_bytes_per_s_min > self.copy_bytes_per_s_max:
            raise ValueError("copy_bytes_per_s_min is above copy_bytes_per_s_max; make it less")

    def copy_limits(self) -> CopyLimits:
        return CopyLimits(
            latency_ms=self.copy_latency_ms,
            bytes_per_s_min=self.copy_bytes_per_s_min,
            bytes_per_s_max=self.copy_bytes_per_s_max,
        )


class StoreSettings(Section, frozen=True):
    """Sizes and bounds of a node's partitions; free to change between two starts."""

    cache_bytes: Annotated[
        int, Meta(ge=0, description="Memory for recent values, of all partitions together.")
    ] = 256 << 20
    engine_cache_bytes: Annotated[
        int, Meta(ge=0, description="Memory for the blocks of each partition's engine.")
    ] = 16 << 20
    unapplied_bytes_max: Annotated[
        int,
        Meta(
            ge=64 << 10,
            description="Bytes of a partition's records that wait for its engine before writes "
            "are refused.",
        ),
    ] = 64 << 20
    value_bytes_max: Annotated[
        int, Meta(ge=1, le=(4 << 20) - 64, description="The largest value of a key.")
    ] = 1 << 20
    sync_interval_ms: Annotated[
        int, Meta(ge=1, description="Wait before a sync that no write asks for.")
    ] = 50
    flush_bytes: Annotated[
        int, Meta(ge=1, description="Bytes written to an engine before it is flushed.")
    ] = 8 << 20
    flush_interval_ms: Annotated[
        int, Meta(ge=1, description="Wait before an engine that was written to is flushed.")
    ] = 30_000
    binlog_bytes_min: Annotated[
        int, Meta(ge=0, description="Bytes of a partition's binlog that stay for slaves.")
    ] = 64 << 20
    binlog_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of a partition's binlog before it is cut back to the least that "
            "stays; what a connected slave needs stays longer.",
        ),
    ] = 256 << 20
    binlog_hours_max: Annotated[
        int, Meta(ge=1, description="Age of records that do not have to stay before they go.")
    ] = 30 * 24
    binlog_held_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of a partition's binlog that stay for a connected slave; one that "
            "is further behind takes a whole copy.",
        ),
    ] = 8 << 30
