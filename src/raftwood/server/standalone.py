"""All parts in one process: a store, bookies, a gateway, and a node of Zeppelin.

The folder keeps everything: the store's data, the secrets by which the parts know one another, an
access key for whoever uses LogHub, and the password of the table that is there from the start. So
what was written is there after a restart, for the same users.
"""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import msgspec

from raftwood.base.configuration import compose
from raftwood.base.contexts import write_privately
from raftwood.base.environment import Environment
from raftwood.base.errors import AlreadyExists, DeadlineExceeded, InvalidInput, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.loghub.server.access import EVERYWHERE, AccessControl
from raftwood.server.bookies import embedded_bookies
from raftwood.server.cluster import client_tls, kv_node_network
from raftwood.server.cluster_client import awaited_zeppelin, connected_cluster
from raftwood.server.dlogs import opened_dlogs
from raftwood.server.gateway import GatewayServer
from raftwood.server.parts import (
    KvPart,
    LogHubPart,
    LogServicePart,
    Parts,
    check_ports_are_free,
    further_ports,
    kv_ports,
    make_folder,
    new_user,
)
from raftwood.server.settings import Settings
from raftwood.server.store import StoreServer
from raftwood.server.tenants import log_settings, log_tenant
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.deltas import applied
from raftwood.zeppelin.model import EPOCH_NONE, NodeAddresses, TableConfig, Topology
from raftwood.zeppelin.node.server import NodeServer
from raftwood.zeppelin.passwords import is_password

NAME: Final = "default"
"""Of the table, and of the user: the one that clients of Redis are who give a password alone."""
LOGIN_FILE: Final = "kv-login"
SERVED_S_MAX: Final = 60.0
_PARTITIONS_PER_NODE: Final = 4
_log = get_logger("zeppelin")


def node_addresses(data: str) -> tuple[str, ...]:
    """Settings of a node on this machine; it tells the others where else it is reached."""
    return (
        f"zeppelin_node.listen={data}",
        "zeppelin_node.replication_listen=127.0.0.1:0",
        "zeppelin_node.admin_listen=127.0.0.1:0",
    )


async def default_part(
    environment: Environment, folder: str, meta: MetaClient, *, nodes: int, address: str
) -> KvPart:
    """How to use the table, once it is served; it is made where it is not there."""
    config = TableConfig(
        partitions=_PARTITIONS_PER_NODE * nodes,
        replicas=min(3, nodes),
        # Where there is one node, nobody else could become master meanwhile.
        on_meta_loss="serve" if nodes == 1 else "stop",
    )
    topology = await meta.topology()
    if NAME not in topology.tables:
        await meta.create_table(NAME, config)
    password = await _password(environment, f"{folder}/{LOGIN_FILE}", meta)
    await until_served(meta, NAME)
    host, _, port = address.rpartition(":")
    return KvPart(host=host, port=int(port), user=NAME, password=password)


async def _password(environment: Environment, file: str, meta: MetaClient) -> str:
    """That of the folder; a new one where there is none yet, or another one was set."""
    known = (await meta.topology()).users.get(NAME)
    kept = _kept(file)
    if known is not None and kept and is_password(kept.encode(), known.password_hash):
        return kept
    user, password = new_user(environment, NAME, NAME, may_write=True)
    write_privately(file, password.encode())
    if known is None:
        await meta.add_user(user)
    else:
        _log.warning("the password of user default is not known here, and is changed")
        await meta.set_password(NAME, user.password_hash)
    return password


def _kept(file: str) -> str:
    if not os.path.exists(file):
        return ""
    with open(file, encoding="utf-8") as opened:
        return opened.read()


async def until_served(meta: MetaClient, table: str) -> None:
    """Until all its partitions have masters, and nodes know it."""
    topology = Topology()
    try:
        async with asyncio.timeout(SERVED_S_MAX):
            async for delta in meta.watch(EPOCH_NONE):
                topology = applied(topology, delta)
                partitions = topology.tables[table].partitions
                if all(each.master is not None for each in partitions):
                    break
            await meta.wait_applied(topology.epoch)
    except TimeoutError:
        raise DeadlineExceeded(
            f"table {table} was not served in {SERVED_S_MAX:g} s: see `raftwood kv status`"
        ) from None


PORT_BASE: Final = 7400
BOOKIES: Final = 3
PORTS: Final = 5 + BOOKIES
"""From the base on: the store, native clients of LogHub, HTTP, bookies, Zeppelin, shippers."""
STREAM: Final = ("default", "shipped")
"""The project and the logstore of lines of files, for `raftwood ship` to work at once."""
KEY_FILE: Final = "access-key.json"
CONFIG_FILE: Final = "standalone.toml"
_BEGIN_S_MAX: Final = 60.0
_PAUSE_S: Final = 0.1


def standalone_settings(
    folder: str, *, port_base: int, flags: tuple[str, ...] = (), checks_ports: bool = False
) -> Settings:
    """The settings of the folder, which is made where it is not there."""
    if not 1024 <= port_base <= 65_535 - PORTS:
        raise InvalidInput(f"port base {port_base}: give 1024 to {65_535 - PORTS}")
    file = f"{folder}/{CONFIG_FILE}"
    data = read_or(file, lambda: _new_config(folder))
    store, native, http, *_, kv, clogs = _addresses(port_base)
    given = (
        f"cluster.members=1={store}",
        f"gateway.listen={native}",
        f"gateway.http_listen={http}",
        f"clogs.listen={clogs}",
        "dlog.store=bookies",
        f"zeppelin_node.data_folder={folder}/kv",
        *node_addresses(kv),
        *flags,
    )
    settings = log_settings(
        with_default_stream(compose(Settings, data=data, file=file, flags=given).settings)
    )
    if checks_ports:
        found = (settings.gateway.listen, settings.gateway.http_listen, settings.clogs.listen)
        check_ports_are_free(
            [store, *_bookie_addresses(settings), settings.zeppelin_node.listen, *found]
        )
    # Only now: a start that fails by what was given leaves no folder behind.
    make_folder(folder)
    if not os.path.exists(file):
        write_privately(file, data)
    return settings


def read_or(file: str, new: Callable[[], bytes]) -> bytes:
    """What is in a file, or new contents where there is none."""
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return new()


def _addresses(port_base: int) -> list[str]:
    return [f"127.0.0.1:{port_base + place}" for place in range(PORTS)]


def _bookie_addresses(settings: Settings) -> list[str]:
    """Behind the port of the store, which is the first, and the two of the gateway."""
    (store,) = settings.cluster.addresses().values()
    return _addresses(int(store.rpartition(":")[2]))[3 : 3 + BOOKIES]


def _new_config(folder: str) -> bytes:
    return f"""\
# Made by `raftwood standalone`. Keep it to yourself: it holds the secrets.
[cluster]
name = "standalone"

[node]
store_id = 1
data_folder = "{folder}/store"

[hakeeper]
log_shards = 0
log_replicas = 1
hakeeper_replicas = 1

[loghub]
log_replicas = 1

{new_secrets()}""".encode()


def new_secrets() -> str:
    """The section of a configuration that nobody else has."""
    names = ("stores", "clients", "operators", "metrics")
    return "\n".join(
        ["[secrets]", *(f'{name} = "{secrets.token_urlsafe(32)}"' for name in names), ""]
    )


def with_default_stream(settings: Settings) -> Settings:
    """Lines of files that are shipped go to `STREAM`, unless the settings say where they go."""
    clogs = settings.clogs
    if clogs.project or clogs.routes or clogs.store == "files":
        return settings
    project, logstore = STREAM
    clogs = msgspec.structs.replace(clogs, project=project, logstore=logstore)
    return msgspec.structs.replace(settings, clogs=clogs)


async def default_stream(environment: Environment, settings: Settings, hub: LogHubPart) -> str:
    """Where lines of files go for which no route is set; `STREAM` is made if it is not there."""
    project, logstore = settings.clogs.project, settings.clogs.logstore
    if (project, logstore) == STREAM:
        async with await AsyncLogHubClient.connect(
            environment,
            hub.native,
            access_key=hub.access_key,
            access_secret=hub.access_secret,
            tls=client_tls(settings),
        ) as client:
            with suppress(AlreadyExists):
                await client.create_project(project, description="of raftwood ship")
            with suppress(AlreadyExists):
                await client.create_logstore(project, logstore)
    return f"{project}/{logstore}" if project else ""


@asynccontextmanager
async def running_standalone(
    environment: Environment,
    folder: str,
    settings: Settings,
    *,
    metrics: Metrics,
    begin_anew: Collection[str] = (),
) -> AsyncIterator[tuple[Parts, GatewayServer]]:
    """All parts, from the store up; at the end they are closed in the other order."""
    store_server = await StoreServer.start(
        environment, settings, log_tenant, joins=False, metrics=metrics
    )
    try:
        async with AsyncExitStack() as stack:
            store, logs = await stack.enter_async_context(
                connected_cluster(environment, settings, None)
            )
            await begun(store.status)
            bookies = await stack.enter_async_context(
                embedded_bookies(
                    environment,
                    settings,
                    store,
                    folder,
                    count=BOOKIES,
                    addresses=_bookie_addresses(settings),
                    metrics=metrics,
                    begin_anew=begin_anew,
                )
            )
            dlogs = await stack.enter_async_context(
                opened_dlogs(environment, settings, store, bookies)
            )
            kv, node = await stack.enter_async_context(
                _zeppelin(environment, folder, settings, metrics)
            )
            gateway = await GatewayServer.start(
                environment, settings, store, logs, dlogs=dlogs, metrics=metrics
            )
            try:
                key = await access_key(folder, gateway.gateway.access)
                loghub = LogHubPart(
                    url=f"http://{gateway.http_address}",
                    native=gateway.address,
                    access_key=key.id,
                    access_secret=key.secret,
                )
                service = LogServicePart(store_server.address, f"{folder}/{CONFIG_FILE}")
                clogs = (gateway.clogs_address,) if gateway.clogs_address else ()
                stream = await default_stream(environment, settings, loghub)
                ports = {
                    "store": [store_server.address],
                    "loghub": [gateway.address],
                    "loghub_http": [each for each in (gateway.http_address,) if each],
                    "clogs": [*clogs],
                    "bookies": _bookie_addresses(settings),
                    **kv_ports([node]),
                    **further_ports(settings),
                }
                yield Parts(loghub, service, os.getpid(), kv, clogs, stream, ports), gateway
            finally:
                await gateway.close()
    finally:
        await store_server.close()


@asynccontextmanager
async def _zeppelin(
    environment: Environment, folder: str, settings: Settings, metrics: Metrics
) -> AsyncIterator[tuple[KvPart, NodeAddresses]]:
    """A node, and its table."""
    async with AsyncExitStack() as stack:
        meta = await awaited_zeppelin(stack, environment, settings, None)
        node = await NodeServer.start(
            # Syncs of one environment wait for one another, those of several don't.
            stack.enter_context(real_environment()),
            settings.zeppelin_node,
            meta,
            network=kv_node_network(settings),
            meta_settings=settings.zeppelin_meta,
            store_settings=settings.zeppelin_store,
            log_settings=settings.log,
            metrics=metrics,
        )
        stack.push_async_callback(node.close)
        part = await default_part(environment, folder, meta, nodes=1, address=node.address)
        yield part, node.addresses


async def begun(ask: Callable[[], Awaitable[object]]) -> None:
    """Wait until the metastore answers: a new cluster sets itself up first."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _BEGIN_S_MAX
    while True:
        try:
            await ask()
        except RaftwoodError as error:
            if not error.retriable or loop.time() > deadline:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            return


async def access_key(folder: str, access: AccessControl) -> AccessKey:
    """The folder's key; a new one where there is none yet, or where it was revoked."""
    file = f"{folder}/{KEY_FILE}"
    known = _stored_key(file)
    if known is not None and await access.find(known.id) is not None:
        return known
    key = await access.create(
        {EVERYWHERE: AccessRole.ADMIN}, description="of whoever runs this cluster"
    )
    write_privately(file, msgspec.json.encode(key))
    return key


def _stored_key(file: str) -> AccessKey | None:
    if not os.path.exists(file):
        return None
    with open(file, "rb") as opened:
        return msgspec.json.decode(opened.read(), type=AccessKey)
