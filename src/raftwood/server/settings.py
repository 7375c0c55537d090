"""All settings there are: one line per section, each defined by the package it belongs to."""

import msgspec

from raftwood.base.settings import (
    ClusterSettings,
    ConnectionSettings,
    HttpSettings,
    LoggingSettings,
    NodeSettings,
    SecretSettings,
    TlsSettings,
)
from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.clogs.receiver_settings import ClogsSettings
from raftwood.disk.segment_log.segments import LogSettings
from raftwood.dlog.bookie.settings import BookieClientSettings, BookieSettings
from raftwood.dlog.settings import DlogSettings, SharedDlogSettings
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.settings import GatewaySettings, LogHubClientSettings, LogHubSettings
from raftwood.logservice.settings import HaKeeperSettings, LogServiceSettings
from raftwood.raft.settings import RaftHostSettings
from raftwood.zeppelin.settings import (
    StoreSettings,
    ZeppelinClientSettings,
    ZeppelinMetaSettings,
    ZeppelinNodeSettings,
)


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
