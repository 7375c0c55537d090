"""Settings of the ways in beside SLS."""

import ipaddress
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from raftwood.base.names import NAME_PATTERN
from raftwood.base.settings import Secret, Section
from raftwood.loghub.decode_bounds import DecodeBounds

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AllowedNetworks:
    """Networks such as `10.0.0.0/8` or `::1`; ValueError for what is none."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks: list[_Network] = [ipaddress.ip_network(each) for each in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network for network in self._networks)


def _listen(what: str) -> Any:
    return Meta(
        pattern=r"\A([^=\s]+:[0-9]{1,5})?\Z",
        description=f"Address for {what}, host:port; without it this is not served.",
    )


def _name(what: str) -> Any:
    return Meta(pattern=rf"\A({NAME_PATTERN})?\Z", description=what)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2] or 0)


_Networks = tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...]


class WaysInSettings(Section, frozen=True):
    """OTLP, Loki, Elasticsearch and JSON lines over HTTP; syslog and Fluent on their own ports."""

    logstore: Annotated[
        str, _name("The logstore of HTTP requests that name none; without it they are refused.")
    ] = ""
    certificate: Annotated[
        str, Meta(max_length=1024, description="File with the certificate of the TLS addresses.")
    ] = ""
    key: Annotated[str, Meta(max_length=1024, description="File with the certificate's key.")] = ""
    client_authorities: Annotated[
        str,
        Meta(
            max_length=1024,
            description="File with the authorities that signed the certificates of peers: with it "
            "the TLS addresses take who has one, and nobody else.",
        ),
    ] = ""
    connections_max: Annotated[
        int,
        Meta(
            ge=1, le=100_000, description="Of syslog, and of Fluent, at a time; more are refused."
        ),
    ] = 512
    buffers_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            description="What messages that are not yet whole take together, of syslog, and of "
            "Fluent; above it their connections are closed.",
        ),
    ] = 128 << 20
    idle_ms: Annotated[
        int, Meta(ge=100, description="A connection on which nothing comes for so long is closed.")
    ] = 3_600_000
    put_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=3_600_000,
            description="Messages of syslog and Fluent that cannot be stored are tried again for "
            "so long, while their connection waits.",
        ),
    ] = 60_000

    record_keys_max: Annotated[
        int, Meta(ge=16, le=100_000, description="Of one record; with more it is refused.")
    ] = 4_096
    record_values_max: Annotated[
        int,
        Meta(
            ge=16,
            le=1_000_000,
            description="Numbers, texts, lists and maps of one record, at any depth.",
        ),
    ] = 16_384
    record_nesting_max: Annotated[
        int, Meta(ge=1, le=100, description="How deep lists and maps of a record may be nested.")
    ] = 64
    request_values_max: Annotated[
        int,
        Meta(
            ge=16,
            le=10_000_000,
            description="Values of a JSON array, or of a request of Loki or OTLP in JSON.",
        ),
    ] = 500_000

    syslog_listen: Annotated[str, _listen("syslog over TCP")] = ""
    syslog_tls_listen: Annotated[str, _listen("syslog over TLS")] = ""
    syslog_udp_listen: Annotated[str, _listen("syslog over UDP, where messages may get lost")] = ""
    syslog_project: Annotated[str, _name("Where syslog's messages go.")] = ""
    syslog_logstore: Annotated[str, _name("Where syslog's messages go.")] = ""
    syslog_peers: Annotated[
        _Networks,
        Meta(description="Networks that may send without a certificate, such as 10.0.0.0/8."),
    ] = ()
    syslog_message_bytes_max: Annotated[
        int, Meta(ge=480, le=1 << 20, description="The largest message of syslog.")
    ] = 64 << 10

    fluent_listen: Annotated[str, _listen("Fluent Forward")] = ""
    fluent_tls_listen: Annotated[str, _listen("Fluent Forward over TLS")] = ""
    fluent_project: Annotated[str, _name("Where Fluent's events go.")] = ""
    fluent_logstore: Annotated[str, _name("Where Fluent's events go.")] = ""
    fluent_shared_key: Annotated[
        Secret, Meta(description="With it peers prove themselves, but for those of fluent_peers.")
    ] = Secret()
    fluent_peers: Annotated[
        _Networks,
        Meta(description="Networks that may send without the shared key, such as 10.0.0.0/8."),
    ] = ()
    fluent_message_bytes_max: Annotated[
        int,
        Meta(ge=1 << 10, le=64 << 20, description="The largest message (chunk) of Fluent."),
    ] = 16 << 20

    def __post_init__(self) -> None:
        for name in msgspec.structs.fields(self):
            if name.name.endswith("listen") and _port(getattr(self, name.name)) >= 1 << 16:
                raise ValueError(
                    f"{name.name} has a port above 65535; give one below, or 0 for any"
                )
        has_certificates = bool(self.client_authorities)
        if (self.syslog_tls_listen or self.fluent_tls_listen) and not (
            self.certificate and self.key
        ):
            raise ValueError("a TLS address is given without certificate and key; give both")
        self._check(
            "syslog",
            plain=self.syslog_listen or self.syslog_udp_listen,
            encrypted=self.syslog_tls_listen,
            place=(self.syslog_project, self.syslog_logstore),
            lets_in_plain=bool(AllowedNetworks(self.syslog_peers)),
            lets_in_encrypted=bool(self.syslog_peers) or has_certificates,
        )
        can_prove = bool(AllowedNetworks(self.fluent_peers)) or bool(self.fluent_shared_key)
        self._check(
            "fluent",
            plain=self.fluent_listen,
            encrypted=self.fluent_tls_listen,
            place=(self.fluent_project, self.fluent_logstore),
            lets_in_plain=can_prove,
            lets_in_encrypted=can_prove or has_certificates,
        )

    @property
    def bounds(self) -> DecodeBounds:
        return DecodeBounds(
            keys_max=self.record_keys_max,
            values_max=self.record_values_max,
            nesting_max=self.record_nesting_max,
            request_values_max=self.request_values_max,
        )

    @staticmethod
    def _check(
        way: str,
        *,
        plain: str,
        encrypted: str,
        place: tuple[str, str],
        lets_in_plain: bool,
        lets_in_encrypted: bool,
    ) -> None:
        if not plain and not encrypted:
            return
        if not all(place):
            raise ValueError(f"{way} is to be served; give {way}_project and {way}_logstore")
        if (plain and not lets_in_plain) or (encrypted and not lets_in_encrypted):
            raise ValueError(
                f"an address of {way} would let nobody in; give {way}_peers, or for TLS "
                "client_authorities" + (", or fluent_shared_key" if way == "fluent" else "")
            )
