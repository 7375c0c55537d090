"""A cluster of processes on this machine: stores, bookies, gateways and nodes of Zeppelin.

As `standalone`, in one folder, each part in a process of its own; they end with the one that
started them.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from raftwood.base.configuration import compose
from raftwood.base.contexts import write_privately
from raftwood.base.environment import Environment
from raftwood.base.errors import InternalError, InvalidInput
from raftwood.base.logs import get_logger
from raftwood.clogs.receiver_settings import ClogsSettings
from raftwood.loghub.server.access import AccessControl
from raftwood.loghub.server.metadata import Metadata
from raftwood.server.child_processes import ChildProcesses
from raftwood.server.cluster_client import connected_cluster, connected_zeppelin
from raftwood.server.parts import (
    KvPart,
    LogHubPart,
    LogServicePart,
    Parts,
    check_ports_are_free,
    further_ports,
    kv_ports,
    make_folder,
)
from raftwood.server.settings import Settings
from raftwood.server.standalone import (
    access_key,
    begun,
    default_part,
    default_stream,
    new_secrets,
    node_addresses,
    read_or,
    with_default_stream,
)
from raftwood.zeppelin.model import NodeAddresses

CONFIG_FILE: Final = "cluster.toml"
STORES_MAX: Final = 9
_log = get_logger("cluster")


class LocalCluster:
    """Where each process of a cluster is: ports from the base on, stores first, then gateways,
    bookies and nodes; shippers are served by the gateways on the last.
    """

    def __init__(
        self,
        folder: str,
        *,
        stores: int,
        gateways: int,
        port_base: int,
        bookies: int = 0,
        kv_nodes: int = 0,
    ) -> None:
        if not 1 <= stores <= STORES_MAX or not 1 <= gateways <= STORES_MAX:
            raise InvalidInput(
                f"{stores} stores and {gateways} gateways: give 1 to {STORES_MAX} of each"
            )
        for kind, count in (("bookies", bookies), ("nodes of Zeppelin", kv_nodes)):
            if not 0 <= count <= STORES_MAX:
                raise InvalidInput(f"{count} {kind}: give 0 to {STORES_MAX}")
        last = 65_535 - stores - 3 * gateways - bookies - kv_nodes
        if not 1024 <= port_base <= last:
            raise InvalidInput(f"port base {port_base}: give 1024 to {last}")
        ports = iter(range(port_base, 65_536))
        self.folder = folder
        self.stores = {number: f"127.0.0.1:{next(ports)}" for number in range(1, stores + 1)}
        self.gateways = {number: f"127.0.0.1:{next(ports)}" for number in range(1, gateways + 1)}
        self.http = {number: f"127.0.0.1:{next(ports)}" for number in range(1, gateways + 1)}
        self.bookies = {number: f"127.0.0.1:{next(ports)}" for number in range(1, bookies + 1)}
        self.kv_nodes = {number: f"127.0.0.1:{next(ports)}" for number in range(1, kv_nodes + 1)}
        self.clogs = {number: f"127.0.0.1:{next(ports)}" for number in range(1, gateways + 1)}
        self.config_file = f"{folder}/{CONFIG_FILE}"

    def prepare(self) -> Settings:
        """The settings of the folder, which is made where it is not there."""
        data = read_or(self.config_file, self._new_config)
        settings = compose(
            Settings, data=data, file=self.config_file, flags=self._dlog_settings()
        ).settings
        if settings.cluster.addresses() != self.stores:
            known = ", ".join(settings.cluster.members)
            raise InvalidInput(
                f"the cluster in {self.folder} has other stores ({known}): give the same --stores "
                "and --port-base as before, or another --data"
            )
        # Only now: a start that fails by what was given leaves no folder behind.
        make_folder(self.folder)
        if not os.path.exists(self.config_file):
            write_privately(self.config_file, data)
        return with_default_stream(settings)

    def check_ports(self) -> None:
        """Refuse to start where another process has one of the ports."""
        for group in (
            self.stores,
            self.gateways,
            self.http,
            self.bookies,
            self.kv_nodes,
            self.clogs,
        ):
            check_ports_are_free(group.values())

    def _new_config(self) -> bytes:
        members = ", ".join(f'"{number}={address}"' for number, address in self.stores.items())
        replicas = min(3, len(self.stores))
        return f"""\
# Made by `raftwood cluster up`. Keep it to yourself: it holds the secrets.
[cluster]
name = "local"
members = [{members}]

[hakeeper]
log_shards = 0
log_replicas = {replicas}
hakeeper_replicas = {replicas}

[loghub]
log_replicas = {replicas}

{new_secrets()}""".encode()

    def store_arguments(self, number: int) -> list[str]:
        return [
            *("logservice", "start", "--config", self.config_file),
            f"--set=node.store_id={number}",
            f"--set=node.data_folder={self.folder}/store-{number}",
        ]

    def gateway_arguments(self, number: int, clogs: ClogsSettings) -> list[str]:
        return [
            *("gateway", "start", "--config", self.config_file),
            f"--set=gateway.listen={self.gateways[number]}",
            f"--set=gateway.http_listen={self.http[number]}",
            f"--set=clogs.listen={self.clogs[number]}",
            f"--set=clogs.project={clogs.project}",
            f"--set=clogs.logstore={clogs.logstore}",
            *(f"--set={each}" for each in self._dlog_settings()),
        ]

    def bookie_arguments(self, number: int) -> list[str]:
        return [
            *("bookie", "start", "--config", self.config_file),
            f"--set=bookie.listen={self.bookies[number]}",
            f"--set=bookie.data_folder={self.folder}/bookie-{number}",
        ]

    def kv_arguments(self, number: int) -> list[str]:
        return [
            *("kv", "node", "start", "--config", self.config_file),
            f"--set=zeppelin_node.data_folder={self.folder}/kv-{number}",
            *(f"--set={each}" for each in node_addresses(self.kv_nodes[number])),
        ]

    def _dlog_settings(self) -> list[str]:
        if not self.bookies:
            return []
        copies = min(3, len(self.bookies))
        return [
            "dlog.store=bookies",
            f"dlog.ensemble={copies}",
            f"dlog.write_quorum={copies}",
            f"dlog.ack_quorum={min(2, copies)}",
        ]


@asynccontextmanager
async def running_cluster(
    environment: Environment, cluster: LocalCluster, settings: Settings
) -> AsyncIterator[tuple[Parts, ChildProcesses]]:
    """All processes, once they serve; at the end they are told to end, stores last."""
    async with ChildProcesses(cluster.folder) as children:
        await asyncio.gather(
            *(
                children.start(f"store-{number}", cluster.store_arguments(number))
                for number in cluster.stores
            )
        )
        async with connected_cluster(environment, settings, None) as (store, _):
            await begun(store.status)
            key = await access_key(cluster.folder, AccessControl(environment, Metadata(store)))
        await asyncio.gather(
            *(start_bookie(children, cluster, number) for number in cluster.bookies),
            *(
                children.start(f"kv-{number}", cluster.kv_arguments(number))
                for number in cluster.kv_nodes
            ),
        )
        await asyncio.gather(
            *(
                children.start(
                    f"gateway-{number}", cluster.gateway_arguments(number, settings.clogs)
                )
                for number in cluster.gateways
            )
        )
        loghub = LogHubPart(
            url=f"http://{cluster.http[1]}",
            native=",".join(cluster.gateways.values()),
            access_key=key.id,
            access_secret=key.secret,
        )
        service = LogServicePart(",".join(cluster.stores.values()), cluster.config_file)
        kv, nodes = await _kv_part(environment, cluster, settings)
        clogs = tuple(cluster.clogs.values())
        stream = await default_stream(environment, settings, loghub)
        ports = {
            "store": [*cluster.stores.values()],
            "loghub": [*cluster.gateways.values()],
            "loghub_http": [*cluster.http.values()],
            "clogs": [*clogs],
            "bookies": [*cluster.bookies.values()],
            **kv_ports(nodes),
            **further_ports(settings),
        }
        yield Parts(loghub, service, os.getpid(), kv, clogs, stream, ports), children
        for kind in ("gateway-", "kv-", "bookie-", "store-"):
            await children.end(kind)


async def start_bookie(children: ChildProcesses, cluster: LocalCluster, number: int) -> None:
    """One that is damaged stays away, and the others serve."""
    try:
        await children.start(f"bookie-{number}", cluster.bookie_arguments(number))
    except InternalError as error:
        # What it said last is all that is known of it: damage names this remedy.
        if "--begin-anew" not in error.message:
            raise
        _log.error(
            "a bookie is damaged and stays away",
            bookie=cluster.bookies[number],
            reason=error.message,
        )


async def _kv_part(
    environment: Environment, cluster: LocalCluster, settings: Settings
) -> tuple[KvPart | None, list[NodeAddresses]]:
    if not cluster.kv_nodes:
        return None, []
    async with connected_zeppelin(environment, settings, None) as meta:
        part = await default_part(
            environment,
            cluster.folder,
            meta,
            nodes=len(cluster.kv_nodes),
            address=cluster.kv_nodes[1],
        )
        topology = await meta.topology()
        return part, [node.addresses for node in topology.nodes.values() if node.is_up]
