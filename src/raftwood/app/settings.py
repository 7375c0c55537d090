"""All settings there are: one line per section, each defined by the package it belongs to."""

import msgspec

from raftwood.base.sections import (
    ClusterSettings,
    ConnectionSettings,
    HttpSettings,
    LoggingSettings,
    NodeSettings,
    SecretSettings,
    TlsSettings,
)
from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.clogs.settings import ClogsSettings
from raftwood.disk.segment_log.settings import LogSettings
from raftwood.dlog.bookie.settings import BookieClientSettings, BookieSettings
from raftwood.dlog.log.settings import DlogSettings
from raftwood.dlog.shared.settings import SharedDlogSettings
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.settings import GatewaySettings, LogHubClientSettings, LogHubSettings
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.settings import LogServiceSettings
from raftwood.raft.host.settings import RaftHostSettings
from raftwood.zeppelin.client.settings import ZeppelinClientSettings
from raftwood.zeppelin.meta.settings import ZeppelinMetaSettings
from raftwood.zeppelin.node.node_settings import ZeppelinNodeSettings
from raftwood.zeppelin.node.store_settings import StoreSettings


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A field is a section; its name is the section's in files, flags and the environment."""

    cluster: ClusterSettings
    secrets: SecretSettings
    node: NodeSettings
    tls: TlsSettings
    http: HttpSettings
    connections: ConnectionSettings
    logs: LoggingSettings
    log: LogSettings
    raft: RaftHostSettings
    logservice: LogServiceSettings
    hakeeper: HaKeeperSettings
    zeppelin_meta: ZeppelinMetaSettings
    zeppelin_node: ZeppelinNodeSettings
    zeppelin_store: StoreSettings
    zeppelin_client: ZeppelinClientSettings
    loghub: LogHubSettings
    gateway: GatewaySettings
    ways_in: WaysInSettings
    clogs: ClogsSettings
    clogs_client: ClogsClientSettings
    loghub_client: LogHubClientSettings
    bookie: BookieSettings
    bookie_client: BookieClientSettings
    dlog: SharedDlogSettings
    dlog_client: DlogSettings
