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
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
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

from raftwood.app.cluster_network import operator_network
from raftwood.app.connecting import awaited_zeppelin
from raftwood.app.settings import Settings
from raftwood.base.configuration import load_configuration
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError, Unavailable
from raftwood.disk.real_environment import real_environment
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import Node, NodeAddresses, NodeId, TableConfig, Topology, User
from raftwood.zeppelin.node.admin import ask_status
from raftwood.zeppelin.node.admin_wire import NodeStatus
from raftwood.zeppelin.passwords import password_hash
from tests import lasting
from tests.cluster.store_process import StoreProcess
from tests.cluster.stores import COMMAND
from tests.zeppelin_kit.link_proxies import HOST, LinkProxies
from tests.zookeeper_server import free_ports

QUICK: Mapping[str, Any] = {
    "raft.tick_ms": 50,
    "logs.format": "json",
    "hakeeper.tick_ms": 100,
    "hakeeper.heartbeat_ms": 200,
    "zeppelin_meta.heartbeat_ms": 250,
    "zeppelin_meta.lease_ms": 1_500,
    "zeppelin_meta.down_ms": 2_000,
    "zeppelin_meta.plan_ms": 50,
}
"""A failover takes two seconds, and a lease is kept also where the machine is busy."""
WAIT_S_MAX = 30.0
LOCAL = "127.0.0.1"
_REPLICATION = 1
"""The place of its port among those of a node."""
Result = TypeVar("Result")


class Login(msgspec.Struct, frozen=True):
    """Of a table's user."""

    table: str
    user: str
    password: str


class Process(StoreProcess):
    """A log store or a node."""

    def __init__(
        self,
        name: str,
        number: int,
        folder: Path,
        command: tuple[str, ...],
        address: str,
        begun: Callable[[str, int], None],
    ) -> None:
        super().__init__(number, folder / name, address)
        self.name = name
        self._command = command
        self.folder.parent.mkdir(exist_ok=True)
        self.ready_file = folder / name / "ready"
        self._begun = begun

    def begin(self) -> None:
        """Start it, without waiting for it."""
        self.ready_file.unlink(missing_ok=True)
        self.launch((*self._command, f"--ready-file={self.ready_file}"))
        lasting.lasts(self.pid)
        self._begun(self.name, self.pid)

    def wait_ready(self) -> None:
        began = time.monotonic()
        while not self.ready_file.exists():
            self.check_starts(began)
            time.sleep(0.02)

    def start(self) -> None:
        self.begin()
        self.wait_ready()

    def kill_now(self) -> None:
        """With SIGKILL."""
        self.signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        """As a supervisor does; answers the exit status."""
        self.signal(signal.SIGTERM)
        return self._wait()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def _wait(self) -> int:
        assert self._process is not None
        status = self._process.wait(timeout=WAIT_S_MAX)
        lasting.ended(self.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return status

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
        self.config = folder / "cluster.toml"
        self._settings = {**QUICK, **settings}
        self.host = HOST if has_proxies else LOCAL
        ports = iter(free_ports(stores + 3 * nodes))
        self.stores: dict[int, Process] = {}
        self.nodes: dict[int, Process] = {}
        self.ports: dict[str, list[int]] = {}
        for number in range(1, stores + 1):
            self.stores[number] = self._store(folder, number, next(ports))
        for number in range(1, nodes + 1):
            self.nodes[number] = self._node(folder, number, [next(ports) for _ in range(3)])
        self.proxies = LinkProxies() if has_proxies else None
        self._write_file()

    def _store(self, folder: Path, number: int, port: int) -> Process:
        name = f"store-{number}"
        own = {
            "node.store_id": number,
            "node.data_folder": folder / name / "data",
            "node.listen": f"{LOCAL}:{port}",
            "node.advertise": f"{self.host}:{port}",
        }
        return self._process(name, number, folder, ("logservice", "start"), own, [port])

    def _node(self, folder: Path, number: int, ports: list[int]) -> Process:
        name = f"node-{number}"
        data, replication, admin = (f"{LOCAL}:{port}" for port in ports)
        own = {
            "zeppelin_node.data_folder": folder / name / "data",
            "zeppelin_node.listen": data,
            "zeppelin_node.replication_listen": replication,
            "zeppelin_node.admin_listen": admin,
            "zeppelin_node.advertise_host": self.host,
        }
        return self._process(name, number, folder, ("kv", "node", "start"), own, ports)

    def _process(
        self,
        name: str,
        number: int,
        folder: Path,
        command: tuple[str, ...],
        own: Mapping[str, Any],
        ports: list[int],
    ) -> Process:
        self.ports[name] = ports
        sets = [f"--set={key}={value}" for key, value in own.items()]
        whole = (*COMMAND, *command, f"--config={self.config}", *sets)
        return Process(name, number, folder, whole, f"{self.host}:{ports[0]}", self._begun)

    def _begun(self, name: str, pid: int) -> None:
        if self.proxies is not None:
            self.proxies.knows(name, pid)

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

    def _all(self) -> list[Process]:
        return [*self.stores.values(), *self.nodes.values()]

    def start(self) -> None:
        """All of it, with all proxies in place."""
        if self.proxies is not None:
            for name, ports in self.ports.items():
                for place, port in enumerate(ports):
                    is_for_clients = len(ports) > 1 and place != _REPLICATION
                    self.proxies.add(name, port, is_for_clients=is_for_clients)
        for processes in (self.stores, self.nodes):
            for each in processes.values():
                each.begin()
            for each in processes.values():
                each.wait_ready()

    def discard(self) -> None:
        for each in self._all():
            each.discard()
            lasting.ended(each.pid)

    # Asking.

    @property
    def settings(self) -> Settings:
        return load_configuration(Settings, file=str(self.config)).settings

    def ask(self, work: Callable[[MetaClient], Awaitable[Result]]) -> Result:
        """Something of the meta server."""

        running = [each for each in self.stores.values() if each.is_running]

        async def main() -> Result:
            with real_environment() as environment:
                async with AsyncExitStack() as stack:
                    stores = ",".join(f"{LOCAL}:{self.ports[each.name][0]}" for each in running)
                    meta = await awaited_zeppelin(stack, environment, self.settings, stores)
                    return await work(meta)

        return asyncio.run(main())

    def topology(self) -> Topology:
        return self.ask(lambda meta: meta.topology())

    def status(self, node: int) -> NodeStatus:
        """What a node tells operators."""
        process = self.nodes[node]
        data, replication, admin = (f"{LOCAL}:{port}" for port in self.ports[process.name])
        addresses = NodeAddresses(data=data, replication=replication, admin=admin)
        known = Node(id=process.id, addresses=addresses)

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
        return next(number for number, node in self.nodes.items() if node.id == master)

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
            (*COMMAND, *arguments, f"--config={self.config}"),
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

    def _cut(self, node: int, others: list[Process]) -> None:
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
