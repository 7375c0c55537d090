"""The log service on a store, and the metastore as a guest of it."""

import msgspec

from raftwood import __version__
from raftwood.app.cluster_network import advertised_address, store_as_client
from raftwood.app.groups import METASTORE_SHARD
from raftwood.app.metastore_time import MetastoreTime
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.logservice.server.log_store import Guest, LogStore, LogStorePlace, host_settings
from raftwood.logservice.settings import check_records_fit
from raftwood.metastore.state_machine import MetaStateMachine
from raftwood.raft.host.host import Host


def log_tenant(
    environment: Environment, host: Host, settings: Settings, metrics: Metrics
) -> LogStore:
    """A `Tenant`."""
    place = LogStorePlace(
        address=advertised_address(settings),
        folder=settings.node.data_folder,
        version=__version__,
        first_members=settings.cluster.addresses(),
        network=store_as_client(settings),
    )
    metastore = Guest(
        name="metastore",
        machine=MetaStateMachine,
        run=MetastoreTime(environment, host, METASTORE_SHARD).run,
    )
    return LogStore(
        environment,
        host,
        place,
        settings.logservice,
        settings.hakeeper,
        metrics,
        {METASTORE_SHARD: metastore},
    )


def log_settings(settings: Settings) -> Settings:
    """As given, but for what the log service needs of its host; refused where they do not fit."""
    check_records_fit(settings.logservice, settings.raft)
    return msgspec.structs.replace(settings, raft=host_settings(settings.raft))
