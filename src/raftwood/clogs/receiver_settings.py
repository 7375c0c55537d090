"""Settings of a receiver: where it serves shippers, where it stores what they send, and bounds."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from raftwood.base.names import NAME_PATTERN
from raftwood.base.settings import Secret, Section

ROUTE_PATTERN: Final = rf".{{1,1024}}={NAME_PATTERN}/{NAME_PATTERN}"
_LISTEN: Final = r"\A([^=\s]+:[0-9]{1,5})?\Z"
_NAME: Final = rf"\A({NAME_PATTERN})?\Z"


class ClogsSettings(Section, frozen=True):
    """The receiver of a gateway: it stores the lines of files that shippers send."""

    listen: Annotated[
        str,
        Meta(
            pattern=_LISTEN,
            description="Address for shippers, host:port, such as 127.0.0.1:7290; without it they "
            "are not served.",
        ),
    ] = ""
    project: Annotated[
        str, Meta(pattern=_NAME, description="Where files go for which there is no route.")
    ] = ""
    logstore: Annotated[
        str, Meta(pattern=_NAME, description="Where files go for which there is no route.")
    ] = ""
    routes: Annotated[
        tuple[Annotated[str, Meta(pattern=rf"\A{ROUTE_PATTERN}\Z")], ...],
        Meta(
            description="Where files go by their names, as GLOB=PROJECT/LOGSTORE each; the first "
            "that fits is taken.",
        ),
    ] = ()
    store: Annotated[
        Literal["logstores", "files", "both"],
        Meta(description="What lines are written to before they are acknowledged."),
    ] = "logstores"
    files_folder: Annotated[
        str, Meta(max_length=1024, description="Folder of the plain files, one for each name.")
    ] = ""
    batches_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Batches under way; more are refused.")
    ] = 4_096
    bytes_max: Annotated[
        int, Meta(ge=1 << 20, description="Of the batches under way; more are refused.")
    ] = 256 << 20
    connections_max: Annotated[
        int, Meta(ge=1, le=100_000, description="Shippers at a time; more are refused.")
    ] = 4_096
    udp_listen: Annotated[
        str,
        Meta(
            pattern=_LISTEN,
            description="Address for datagrams, host:port: pings, and lines that may get lost; "
            "without it there are none.",
        ),
    ] = ""
    udp_secret: Annotated[
        Secret, Meta(description="What shippers prove with each datagram; 16 characters or more.")
    ] = Secret()
    udp_access_key: Annotated[
        str,
        Meta(
            max_length=128,
            description="The id of the access key by whose rights datagrams are stored.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        for name in ("listen", "udp_listen"):
            if int(getattr(self, name).rpartition(":")[2] or 0) >= 1 << 16:
                raise ValueError(f"{name} has a port above 65535; give one below, or 0 for any")
        if bool(self.project) != bool(self.logstore):
            raise ValueError("project and logstore belong together; give both or none")
        if (self.store != "logstores") != bool(self.files_folder):
            raise ValueError(
                'plain files need store = "files" or "both" as well as files_folder; give both'
            )
        if self.udp_listen and not self.listen:
            raise ValueError("udp_listen is given without listen; give both")
        if self.udp_listen and (len(self.udp_secret.reveal()) < 16 or not self.udp_access_key):
            raise ValueError(
                "udp_listen is given without udp_secret, of 16 characters or more, and "
                "udp_access_key; give both"
            )


class FileRoute(msgspec.Struct, frozen=True):
    """The logstore for files with matching names."""

    glob: str
    project: str
    logstore: str


def parsed_routes(settings: ClogsSettings) -> list[FileRoute]:
    """Returns the routes in the order in which they are tried; the default is the last."""
    routes = []
    for text in settings.routes:
        glob, _, place = text.rpartition("=")
        project, _, logstore = place.partition("/")
        routes.append(FileRoute(glob, project, logstore))
    if settings.project:
        routes.append(FileRoute("*", settings.project, settings.logstore))
    return routes
