"""Zeppelin as real processes: log stores, which have the meta server, and nodes; with faults.

    with kv_processes(folder) as cluster:               # 1 log store, 3 nodes
        login = cluster.create_table("orders", TableConfig(partitions=4))
        with cluster.redis(login) as client: ...        # redis-py's cluster client
        cluster.nodes[1].kill()

Everything blocks; whoever has a loop asks by `asyncio.to_thread`.
"""

import asyncio
import json
import secrets
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
    nullcontext,
)
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from raftwood.base.configuration import load_configuration
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError, Unavailable
from raftwood.disk.real_environment import real_environment
from raftwood.raft.client import AsyncRaftClient
from raftwood.server.cluster import ZEPPELIN_SHARD, client_network, operator_network
from raftwood.server.cluster_client import awaited_zeppelin
from raftwood.server.settings import Settings
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import NodeAddresses, NodeId, NodeInfo, TableConfig, Topology, User
from raftwood.zeppelin.node.admin import ask_status
from raftwood.zeppelin.node.admin_protocol import NodeStatus
from raftwood.zeppelin.passwords import password_hash
from tests.kits.ports import LOCAL, free_ports
from tests.kits.processes import RAFTWOOD, StoreProcess, quick_raftwood
from tests.kits.zeppelin.link_proxies import HOST, LinkProxies

QUICK: Mapping[str, Any] = {
    "raft.tick_ms": 100,
    "logs.format": "json",
    "hakeeper.tick_ms": 100,
    "hakeeper.heartbeat_ms": 200,
    "zeppelin_meta.heartbeat_ms": 250,
    "zeppelin_meta.lease_ms": 1_500,
    "zeppelin_meta.down_ms": 2_000,
    "zeppelin_meta.plan_ms": 50,
}
"""A failover takes two seconds, and a lease is kept also where the machine is busy."""
WAIT_S_MAX = 60.0
_REPLICATION = 1
"""The place of its port among those of a node."""
Result = TypeVar("Result")


class Login(msgspec.Struct, frozen=True):
    """Of a table's user."""

    table: str
    user: str
    password: str


class KvProcess(StoreProcess):
    """A log store or a node; proxies hear that it began."""

    proxies: LinkProxies | None = None

    def begin(self, *more: str, wrapper: Sequence[str] = (), **environment: str) -> None:
        super().begin(*more, wrapper=wrapper, **environment)
        if self.proxies is not None:
            self.proxies.knows(self.name, self.pid)

    @property
    def id(self) -> NodeId:
        """Of a node that has been ready."""
        return NodeId(self.ready_file.read_text().split()[3])


class KvProcesses:
    """Use `kv_processes`; nothing of it outlives the block."""

    def __init__(
        self,
        folder: Path,
        *,
        stores: int,
        nodes: int,
        settings: Mapping[str, Any],
        has_proxies: bool,
    ) -> None:
        self._folder = folder
        self.config = folder / "cluster.toml"
        self._settings = {**QUICK, **settings}
        self.host = HOST if has_proxies else LOCAL
        ports = iter(free_ports(stores + 3 * nodes))
        self.proxies = LinkProxies() if has_proxies else None
        self.stores: dict[int, KvProcess] = {}
        self.nodes: dict[int, KvProcess] = {}
        self.ports: dict[str, list[int]] = {}
        for number in range(1, stores + 1):
            self.stores[number] = self._store(number, next(ports))
        for number in range(1, nodes + 1):
            self.nodes[number] = self._node(number, [next(ports) for _ in range(3)])
        self._write_file()

    def _store(self, number: int, port: int) -> KvProcess:
        name = f"store-{number}"
        own = {
            "node.store_id": number,
            "node.data_folder": self._folder / name,
            "node.listen": f"{LOCAL}:{port}",
            "node.advertise": f"{self.host}:{port}",
        }
        return self._process(name, number, ("logservice", "start"), own, [port])

    def _node(self, number: int, ports: list[int]) -> KvProcess:
        name = f"node-{number}"
        data, replication, admin = (f"{LOCAL}:{port}" for port in ports)
        own = {
            "zeppelin_node.data_folder": self._folder / name,
            "zeppelin_node.listen": data,
            "zeppelin_node.replication_listen": replication,
            "zeppelin_node.admin_listen": admin,
            "zeppelin_node.advertise_host": self.host,
        }
        return self._process(name, number, ("kv", "node", "start"), own, ports)

    def _process(
        self,
        name: str,
        number: int,
        command: tuple[str, ...],
        own: Mapping[str, Any],
        ports: list[int],
    ) -> KvProcess:
        self.ports[name] = ports
        sets = [f"--set={key}={value}" for key, value in own.items()]
        whole = (*RAFTWOOD, *command, f"--config={self.config}", *sets)
        made = KvProcess(name, number, self._folder, f"{self.host}:{ports[0]}", whole)
        made.proxies = self.proxies
        return made

    def _write_file(self) -> None:
        members = [f"{number}={store.address}" for number, store in self.stores.items()]
        lines = [f"cluster.members = {json.dumps(members)}"]
        lines += [
            f'secrets.{name} = "{secrets.token_urlsafe(32)}"'
            for name in ("stores", "clients", "readers", "operators")
        ]
        lines += [f"{name} = {json.dumps(value)}" for name, value in self._settings.items()]
        self.config.write_text("\n".join(lines))
        self.config.chmod(0o600)

    def _all(self) -> list[KvProcess]:
        return [*self.stores.values(), *self.nodes.values()]

    def start(self) -> None:
        """All of it, with all proxies in place."""
        for name in self.ports:
            self._stand_before(name)
        for processes in (self.stores, self.nodes):
            for each in processes.values():
                each.begin()
            for each in processes.values():
                each.wait_ready()

    def _stand_before(self, name: str) -> None:
        if self.proxies is None:
            return
        ports = self.ports[name]
        for place, port in enumerate(ports):
            is_for_clients = len(ports) > 1 and place != _REPLICATION
            self.proxies.add(name, port, is_for_clients=is_for_clients)

    def begin_node(self) -> int:
        """Let one more join, without waiting for it; its number."""
        number = max(self.nodes) + 1
        self.nodes[number] = self._node(number, free_ports(3))
        self._stand_before(self.nodes[number].name)
        self.nodes[number].begin()
        return number

    def add_node(self) -> int:
        """Let one more join; its number."""
        number = self.begin_node()
        self.nodes[number].wait_ready()
        return number

    def remove_nodes(self, numbers: Sequence[int]) -> None:
        """Those that have nothing any more are stopped, and forgotten."""
        for number in numbers:
            assert self.nodes[number].stop() == 0
        for number in numbers:
            self.wait_down(number)
            gone = self.nodes[number].id
            self.ask(lambda meta, gone=gone: meta.remove_node(gone))  # type: ignore[misc]
            del self.nodes[number], self.ports[f"node-{number}"]

    def discard(self) -> None:
        for each in self._all():
            each.discard()

    # Asking.

    @property
    def settings(self) -> Settings:
        return load_configuration(Settings, file=str(self.config)).settings

    def stores_running(self) -> dict[int, str]:
        """Their addresses."""
        return {
            number: f"{LOCAL}:{self.ports[each.name][0]}"
            for number, each in self.stores.items()
            if each.is_running
        }

    def ask(self, work: Callable[[MetaClient], Awaitable[Result]]) -> Result:
        """Something of the meta server."""

        async def main() -> Result:
            with real_environment() as environment:
                async with AsyncExitStack() as stack:
                    stores = ",".join(self.stores_running().values())
                    meta = await awaited_zeppelin(stack, environment, self.settings, stores)
                    return await work(meta)

        return asyncio.run(main())

    def meta_leader(self) -> int:
        """The number of the store that leads the meta server's group."""

        network = client_network(self.settings)
        running = self.stores_running()

        async def main() -> int:
            with real_environment() as environment:
                async with AsyncRaftClient(environment, network, running) as client:
                    return (await client.admin.leader_status(ZEPPELIN_SHARD, timeout_ms=500)).leader

        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            try:
                return asyncio.run(main())
            except RaftwoodError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def topology(self) -> Topology:
        return self.ask(lambda meta: meta.topology())

    def status(self, node: int) -> NodeStatus:
        """What a node tells operators."""
        process = self.nodes[node]
        data, replication, admin = (f"{LOCAL}:{port}" for port in self.ports[process.name])
        addresses = NodeAddresses(data=data, replication=replication, admin=admin)
        known = NodeInfo(id=process.id, addresses=addresses)

        async def main(environment: Environment) -> NodeStatus:
            deadline = time.monotonic() + WAIT_S_MAX
            while True:
                try:
                    return await ask_status(environment, operator_network(self.settings), known)
                except Unavailable:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.1)

        with real_environment() as environment:
            return asyncio.run(main(environment))

    def master_of(self, table: str, partition: int) -> int:
        """The number of the node that is master."""
        master = self.topology().tables[table].partitions[partition].master
        return self.number_of(master)

    def number_of(self, node: NodeId | None) -> int:
        return next(number for number, each in self.nodes.items() if each.id == node)

    def create_table(self, name: str, config: TableConfig | None = None) -> Login:
        """With a user of its name, once all nodes have it."""
        password = secrets.token_hex(16)

        async def create(meta: MetaClient) -> None:
            await meta.create_table(name, config or TableConfig(partitions=4))
            with real_environment() as environment:
                hashed = password_hash(password.encode(), environment.random)
            epoch = await meta.add_user(User(name=name, table=name, password_hash=hashed))
            await meta.wait_applied(epoch)

        self.ask(create)
        login = Login(name, name, password)
        self.wait_served(name)
        return login

    def wait_equal(self, table: str) -> None:
        """Until all replicas have the same records, and each partition takes writes."""
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            ends: dict[int, set[int]] = {}
            copies = [
                copy
                for number, node in self.nodes.items()
                if node.is_running
                for copy in self.status(number).copies
                if copy.table == table
            ]
            for copy in copies:
                ends.setdefault(copy.partition, set()).update(
                    (copy.last_sequence, copy.synced_sequence)
                )
            writing = sum(copy.is_writing for copy in copies)
            if writing == len(ends) and all(len(end) == 1 for end in ends.values()):
                return
            assert time.monotonic() < deadline, f"{table} does not become equal: {copies}"
            time.sleep(0.1)

    def wait_down(self, node: int) -> None:
        """Until the meta server has noticed."""
        deadline = time.monotonic() + WAIT_S_MAX
        while self.topology().nodes[self.nodes[node].id].is_up:
            assert time.monotonic() < deadline, f"node {node} is still called up"
            time.sleep(0.1)

    def wait_served(self, table: str) -> None:
        """Until each partition has a master that takes writes."""
        deadline = time.monotonic() + WAIT_S_MAX
        while True:
            try:
                serving = [
                    copy.partition
                    for number, node in self.nodes.items()
                    if node.is_running
                    for copy in self.status(number).copies
                    if copy.table == table and copy.is_writing
                ]
                wanted = len(self.topology().tables[table].partitions)
            except RaftwoodError as error:
                serving, wanted = [str(error)], -1  # type: ignore[list-item]
            if len(serving) == wanted:
                return
            assert time.monotonic() < deadline, f"{table} is served in {serving} of {wanted} alone"
            time.sleep(0.1)

    def redis(self, login: Login, **options: Any) -> Any:
        """A cluster client of redis-py; close it."""
        from redis.cluster import ClusterNode, RedisCluster

        nodes = [
            ClusterNode(self.host, self.ports[node.name][0])
            for node in self.nodes.values()
            if node.is_running
        ]
        return RedisCluster(
            startup_nodes=nodes, username=login.user, password=login.password, **options
        )

    def run(self, *arguments: str, status: int = 0) -> str:
        """A command of `raftwood`; what it printed."""
        ended = subprocess.run(
            (*quick_raftwood(), *arguments, f"--config={self.config}"),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ended.returncode == status, (arguments, ended.stdout, ended.stderr)
        return ended.stderr if status else ended.stdout

    # Faults of the network; `has_proxies` has to be.

    def cut_from_meta(self, node: int) -> None:
        self._cut(node, [*self.stores.values()])

    def cut_from_nodes(self, node: int) -> None:
        self._cut(node, [each for number, each in self.nodes.items() if number != node])

    def _cut(self, node: int, others: list[KvProcess]) -> None:
        assert self.proxies is not None
        self.proxies.cut(self.nodes[node].name, [each.name for each in others])

    def heal(self) -> None:
        assert self.proxies is not None
        self.proxies.heal()


@contextmanager
def kv_processes(
    folder: Path,
    *,
    stores: int = 1,
    nodes: int = 3,
    settings: Mapping[str, Any] | None = None,
    has_proxies: bool = False,
) -> Iterator[KvProcesses]:
    """A cluster that runs; with proxies, nodes can be cut off from one another, and from meta."""
    cluster = KvProcesses(
        folder, stores=stores, nodes=nodes, settings=settings or {}, has_proxies=has_proxies
    )
    proxies: AbstractContextManager[object] = cluster.proxies or nullcontext()
    with ExitStack() as stack:
        stack.enter_context(proxies)
        stack.callback(cluster.discard)
        cluster.start()
        yield cluster
