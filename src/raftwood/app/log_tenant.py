"""The log service on a store, and its guests: the metastore, and Zeppelin's meta server."""

import msgspec

from raftwood import __version__
from raftwood.app.cluster_network import advertised_address, store_as_client
from raftwood.app.groups import METASTORE_SHARD, ZEPPELIN_SHARD
from raftwood.app.metastore_time import MetastoreTime
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.logservice.server.log_store import Guest, LogStore, LogStorePlace, host_settings
from raftwood.logservice.settings import check_records_fit
from raftwood.metastore.state_machine import MetaStateMachine
from raftwood.raft.host.host import Host
from raftwood.zeppelin.meta.keeper import MetaKeeper
from raftwood.zeppelin.meta.state_machine import MetaMachine


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
        {METASTORE_SHARD: metastore, ZEPPELIN_SHARD: _zeppelin(environment, host, settings)},
    )


def _zeppelin(environment: Environment, host: Host, settings: Settings) -> Guest:
    def now_ms() -> int:
        return environment.clock.monotonic_ns() // 1_000_000

    def term() -> int | None:
        return host.status(ZEPPELIN_SHARD).term if host.is_leading(ZEPPELIN_SHARD) else None

    return Guest(
        name="zeppelin",
        machine=lambda: MetaMachine(settings.zeppelin_meta, now_ms=now_ms, term=term),
        run=MetaKeeper(host, ZEPPELIN_SHARD, settings.zeppelin_meta).run,
    )


def log_settings(settings: Settings) -> Settings:
    """As given, but for what the log service needs of its host; refused where they do not fit."""
    check_records_fit(settings.logservice, settings.raft)
    return msgspec.structs.replace(settings, raft=host_settings(settings.raft))
