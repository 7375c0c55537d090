"""The sections that belong to no single package: who this node is, its logs, and the cluster."""

from typing import Annotated, Literal

from msgspec import Meta

from raftwood.base.names import NAME_PATTERN
from raftwood.base.settings import Section

Level = Literal["debug", "info", "warning", "error"]


class ClusterSettings(Section, frozen=True):
    """What all nodes of a cluster agree on."""

    scope = "cluster"

    name: Annotated[
        str,
        Meta(
            pattern=rf"\A{NAME_PATTERN}\Z",
            description="Name of the cluster; a node refuses peers and data of another cluster.",
        ),
    ] = "raftwood"


class NodeSettings(Section, frozen=True):
    """Who this node is and where it keeps its data."""

    store_id: Annotated[
        int,
        Meta(ge=1, le=(1 << 32) - 1, description="Number of this store, unique in the cluster."),
    ] = 1
    data_folder: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1024,
            description="Folder that holds all data of this node; no other process may use it.",
        ),
    ] = "raftwood-data"


class LoggingSettings(Section, frozen=True):
    """How the node's own log lines look."""

    level: Annotated[Level, Meta(description="The least severe lines that are written.")] = "info"
    format: Annotated[
        Literal["auto", "text", "json"],
        Meta(description="Text for people, JSON lines for machines; auto: text on a terminal."),
    ] = "auto"
