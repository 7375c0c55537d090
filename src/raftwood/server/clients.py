"""Clients of the systems, made from the settings: commands and the front door both begin here.

What a setting lacks is an error that names the setting and how to get its value.
"""

import os
import platform
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

from msgspec.structs import replace

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, InvalidInput, Unauthenticated
from raftwood.base.seams import MetaStore
from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.dlog.ledgers.seams import LedgerStore
from raftwood.loghub.client.gateways import Gateways, HubAccess, addresses_of
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.consumer.leases import LeaseStore, LeaseTimes, signature
from raftwood.loghub.consumer.meta_store import MetaLeaseStore
from raftwood.loghub.consumer.worker import WorkerConfig
from raftwood.logservice.client.shard_link import ask_store_addresses
from raftwood.net import ClientTls, TlsFiles
from raftwood.net.stores import ClientNetwork, Stores, discover
from raftwood.server.cluster import client_tls
from raftwood.server.cluster_client import connected_metastore, given_addresses
from raftwood.server.dlogs import opened_ledgers
from raftwood.server.settings import Settings
from raftwood.zeppelin.client.async_kv import AsyncKv
from raftwood.zeppelin.client.nodes import ReadFrom

CONNECT_MS: Final = 5_000
CALL_MS: Final = 60_000
"""A logstore of many shards makes many logs."""
META_SCHEME: Final = "meta://"
LEASE_MS_MIN: Final = 1_000
LEASE_FILE: Final = "raftwood-leases.sqlite"
DEFAULT_LEASES: Final = f"sqlite:///{LEASE_FILE}"


def hub_access(
    settings: Settings, *, gateways: str | None = None, access_key: str | None = None
) -> HubAccess:
    """Where gateways are, and the access key; what is given here comes before the settings."""
    client = settings.loghub_client
    key = access_key or client.access_key
    for name, is_given in (("access_key", key), ("access_secret", client.access_secret)):
        if not is_given:
            raise InvalidConfiguration(
                f"loghub_client.{name} is not set: `raftwood key create PROJECT=ROLE` makes a "
                "key, and prints what to add to the file; or use a context that has one, see "
                "`raftwood context list`"
            )
    return HubAccess(
        addresses=addresses_of(gateways or client.gateways),
        access_key=key,
        access_secret=client.access_secret.as_key(),
        tls=client_tls(settings),
    )


async def loghub_client(environment: Environment, access: HubAccess) -> AsyncLogHubClient:
    """A client that a gateway has answered; its caller closes it."""
    gateways = Gateways(environment, access)
    try:
        await gateways.start(CONNECT_MS)
    except BaseException as error:
        await gateways.close()
        if isinstance(error, Unauthenticated):
            raise Unauthenticated(
                f"no gateway takes access key {access.access_key}: {error.message}. An operator "
                "sees with `raftwood key list` whether there is such a key"
            ) from error
        raise
    return AsyncLogHubClient(environment, gateways, timeout_ms=CALL_MS)


async def kv_client(
    environment: Environment,
    settings: Settings,
    *,
    addresses: str | None = None,
    user: str | None = None,
    password: str | None = None,
    read_from: ReadFrom = "masters",
) -> AsyncKv:
    """A client that logs in as a user of a table; its caller closes it."""
    client = settings.zeppelin_client
    password = password or client.password.reveal()
    if not password:
        raise InvalidConfiguration(
            "zeppelin_client.password is not set: `raftwood kv table create` and `raftwood kv "
            "user add` make one, and print with --format toml what to add to the file; or use "
            "a context that has one, see `raftwood context list`"
        )
    authorities = client.authorities
    return await AsyncKv.connect(
        addresses or client.addresses,
        user=user or client.user,
        password=password,
        tls=ClientTls(TlsFiles(authorities=authorities)) if authorities else client_tls(settings),
        read_from=read_from,
        timeout_ms=client.timeout_ms,
        environment=environment,
    )


@asynccontextmanager
async def connected_log_stores(
    environment: Environment, settings: Settings, addresses: str | None, network: ClientNetwork
) -> AsyncIterator[Stores]:
    """Connections to the stores of a log service."""
    given = given_addresses(settings, addresses)
    found = await discover(environment, network, given, ask_store_addresses)
    stores = Stores(environment, network, found)
    try:
        yield stores
    finally:
        await stores.close()


@asynccontextmanager
async def connected_ledgers(
    environment: Environment, settings: Settings, addresses: str | None
) -> AsyncIterator[tuple[MetaStore, LedgerStore]]:
    """A cluster's metastore and its ledgers."""
    if not settings.dlog.store:
        # A cluster has bookies of its own, unless the settings say otherwise.
        settings = replace(settings, dlog=replace(settings.dlog, store="bookies"))
    async with (
        connected_metastore(environment, settings, addresses) as store,
        opened_ledgers(environment, settings, store) as ledgers,
    ):
        yield store, ledgers


def shipper_settings(settings: Settings, **changes: Any) -> ClogsClientSettings:
    """Those of `clogs_client`; without an access key there, it is that of LogHub."""
    found = settings.clogs_client
    if not found.access_key:
        key = {
            name: getattr(settings.loghub_client, name) for name in ("access_key", "access_secret")
        }
        found = replace(found, **key)
    return replace(found, **changes)


def worker_config(
    name: str | None,
    *,
    start: Literal["begin", "end"],
    timeout_ms: int,
    balance: Literal["count", "bytes"],
) -> WorkerConfig:
    """A worker's, with a name that no other has unless one is given."""
    if timeout_ms < LEASE_MS_MIN:
        raise InvalidInput(f"the timeout of a lease is {timeout_ms} ms: give 1s at least")
    return WorkerConfig(
        instance=name or f"{platform.node()[:40]}-{os.getpid()}-{secrets.token_hex(3)}",
        start=start,
        times=LeaseTimes(timeout_ms=timeout_ms),
        balance=balance,
    )


def lease_url(settings: Settings, given: str | None) -> str:
    return given or settings.loghub_client.lease_store.reveal() or DEFAULT_LEASES


@asynccontextmanager
async def opened_lease_store(
    environment: Environment,
    settings: Settings,
    url: str | None = None,
    *,
    project: str,
    logstore: str,
    group: str,
) -> AsyncIterator[LeaseStore]:
    """Where the workers of a group keep their leases; a worker opens it and closes it.

    The URL, else `loghub_client.lease_store`, which contexts have and which is the cluster's
    metastore there, else a file in the current folder: an access key reaches no metastore.
    """
    sig = signature(project, logstore)
    url = lease_url(settings, url)
    if url.startswith(META_SCHEME):
        addresses = url.removeprefix(META_SCHEME)
        async with connected_metastore(environment, settings, addresses) as metastore:
            yield MetaLeaseStore(environment, metastore, group=group, signature=sig)
        return
    try:
        from raftwood.loghub.consumer.sql_store import SqlLeaseStore  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"{error.name} is not installed: pip install 'raftwood[sql]'"
        ) from error
    yield SqlLeaseStore(environment, url, group=group, signature=sig)
