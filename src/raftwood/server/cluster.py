"""What all processes of a cluster agree on: its raft groups, and how they reach one another.

The groups that every cluster has are known by number. Networks, with their secrets and TLS files,
are made from the settings.
"""

from collections.abc import Sequence
from typing import Final

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.logs import get_logger
from raftwood.base.settings import Secret
from raftwood.dlog.bookie.server import BookieNetwork
from raftwood.logservice.hakeeper.messages import GUESTS_FIRST
from raftwood.net import ClientTls, ServerTls, TlsFiles
from raftwood.net.identity import CLIENT_ROLE, OPERATOR_ROLE, READER_ROLE, STORE_ROLE
from raftwood.net.stores import ClientNetwork
from raftwood.raft.transport import HostNetwork
from raftwood.server.settings import Settings
from raftwood.zeppelin.node.admin_protocol import NodeNetwork
from raftwood.zeppelin.replication.peers import ReplicationNetwork

METASTORE_GROUP: Final = 1
"""The metastore of `raftwood serve`; the first members of the cluster are its first replicas."""
METASTORE_SHARD: Final = GUESTS_FIRST
"""The metastore of a log service; HAKeeper places it."""
ZEPPELIN_SHARD: Final = GUESTS_FIRST + 1
"""The meta server of Zeppelin; HAKeeper places it."""


LISTEN_DEFAULT: Final = "127.0.0.1:7001"
_log = get_logger("tls")


def store_network(settings: Settings) -> HostNetwork:
    """How this store proves itself to others, and they to it."""
    return HostNetwork(
        cluster=settings.cluster.name,
        secret=_secret("stores", settings.secrets.stores),
        client_secret=_secret("clients", settings.secrets.clients),
        reader_secret=_optional(settings.secrets.readers),
        operator_secret=_secret("operators", settings.secrets.operators),
        tls=client_tls(settings),
    )


def store_as_client(settings: Settings) -> ClientNetwork:
    """How this store asks others as a client does."""
    secret = _secret("stores", settings.secrets.stores)
    return _as(settings, STORE_ROLE, str(settings.node.store_id), secret)


def client_network(settings: Settings) -> ClientNetwork:
    """How a client and the stores prove themselves to one another."""
    return _as(settings, CLIENT_ROLE, "client", _secret("clients", settings.secrets.clients))


def reader_network(settings: Settings) -> ClientNetwork:
    """As of a client, for somebody who may change nothing."""
    return _as(settings, READER_ROLE, "reader", _secret("readers", settings.secrets.readers))


def operator_network(settings: Settings) -> ClientNetwork:
    """As of a client, for somebody who may change the cluster."""
    return _as(settings, OPERATOR_ROLE, "operator", operators_secret(settings))


def operators_secret(settings: Settings) -> Secret:
    """Which gateways know one another by, too."""
    return _secret("operators", settings.secrets.operators)


def _as(settings: Settings, role: str, name: str, secret: Secret) -> ClientNetwork:
    return ClientNetwork(
        cluster=settings.cluster.name,
        secret=secret,
        role=role,
        name=name,
        tls=client_tls(settings),
    )


def bookie_network(settings: Settings, listen: str) -> BookieNetwork:
    """Where a bookie serves, and how its clients prove themselves to it."""
    secrets = settings.secrets
    by_role = {
        STORE_ROLE: _optional(secrets.stores),
        CLIENT_ROLE: _secret("clients", secrets.clients),
        READER_ROLE: _optional(secrets.readers),
        OPERATOR_ROLE: _optional(secrets.operators),
    }
    return BookieNetwork(
        listen=listen,
        secrets={role: secret for role, secret in by_role.items() if secret is not None},
        tls=server_tls(settings),
        connections=settings.connections,
    )


def kv_node_network(settings: Settings) -> NodeNetwork:
    """How nodes of Zeppelin and their operators prove themselves to one another."""
    return NodeNetwork(
        replication=ReplicationNetwork(
            cluster=settings.cluster.name,
            secret=_secret("stores", settings.secrets.stores),
            tls=client_tls(settings),
            connections=settings.connections,
        ),
        operators=operators_secret(settings),
        tls=server_tls(settings),
    )


def server_tls(settings: Settings) -> ServerTls | None:
    """None where connections are not encrypted."""
    tls = settings.tls
    if not tls.certificate:
        return None
    return ServerTls(TlsFiles(certificate=tls.certificate, key=tls.key))


def reload_certificates(certificates: Sequence[ServerTls | ClientTls]) -> None:
    """Read the TLS files again, for new connections; what was stays where they are bad."""
    try:
        for each in certificates:
            each.reload()
    except InvalidConfiguration as error:
        _log.error("certificates not renewed", reason=error.message)
    else:
        _log.info("certificates read again", count=len(certificates))


def listen_address(settings: Settings) -> str:
    """Where this store serves."""
    members = settings.cluster.addresses()
    return settings.node.listen or members.get(settings.node.store_id) or LISTEN_DEFAULT


def advertised_address(settings: Settings) -> str:
    """Where others reach this store: it may listen on all addresses, or behind another one."""
    members = settings.cluster.addresses()
    named = settings.node.advertise or members.get(settings.node.store_id)
    return named or listen_address(settings)


def client_tls(settings: Settings) -> ClientTls | None:
    """None where connections are not encrypted."""
    authorities = settings.tls.authorities
    return ClientTls(TlsFiles(authorities=authorities)) if authorities else None


def _optional(setting: Secret) -> Secret | None:
    return setting.as_key() if setting else None


def _secret(name: str, setting: Secret) -> Secret:
    if not setting:
        raise InvalidConfiguration(
            f"secrets.{name} is not set: `raftwood config secret >> FILE` makes one, the same file "
            f"goes to --config everywhere; or set RAFTWOOD_SECRETS__{name.upper()}"
        )
    return setting.as_key()
