"""The settings of a node as a process."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Section
from raftwood.zeppelin.replication.copy_pace import CopyLimits

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
