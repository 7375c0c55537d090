"""How programs and commands reach Zeppelin's nodes."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Secret, Section


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
