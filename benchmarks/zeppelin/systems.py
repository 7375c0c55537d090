"""The systems as processes: started, ready to be loaded, and gone at the end."""

import contextlib
import pathlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from tests.kits.install import debian
from tests.kits.install.cache import NotInstalled
from tests.kits.ports import free_ports
from tests.kits.zeppelin.processes import kv_processes

from benchmarks.harness.cluster import ClusterFailed
from benchmarks.harness.system import NotAvailable
from benchmarks.peers import programs
from benchmarks.zeppelin.cases import (
    ALWAYS,
    DURABLE,
    ETCD,
    ONE,
    OURS,
    OURS_CLUSTER,
    REDIS,
    REDIS_CLUSTER,
    TWO,
)
from benchmarks.zeppelin.loads import Endpoint
from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.slots import SLOTS, slot_of, slots_of_place

TABLE = "bench"
START_S_MAX = 60.0
PARTITIONS = 4
SETTINGS = {
    # Where loads and servers share two cores, nobody is taken for dead.
    "zeppelin_meta.lease_ms": 10_000,
    "zeppelin_meta.down_ms": 15_000,
    # All keys are in memory, as they are in Redis.
    "zeppelin_store.cache_bytes": 1 << 30,
}
Running = Callable[[pathlib.Path], AbstractContextManager[Endpoint]]


def redis_tools() -> debian.Package:
    try:
        return debian.install("redis-server", "redis-tools")
    except NotInstalled as problem:
        raise NotAvailable(str(problem)) from problem


def describe(name: str) -> str:
    """The version and the settings, for the report; `NotAvailable` where it cannot be had."""
    if name == ETCD:
        _, version = programs.etcd()
        programs.go_program("etcd_load")
        client = programs.go_module_version("go.etcd.io/etcd/client/v3")
        return (
            f"etcd-server {version} of Debian, one member, fsync on; loaded through client/v3 "
            f"{client} by a Go program, one connection, as many in flight as there are "
            "connections elsewhere; 100 keys are one transaction; reads are linearizable"
        )
    version = redis_tools().version
    about = {
        OURS: f"`raftwood kv node start`, {PARTITIONS} partitions without slaves, ack = written, "
        "cache of 1 GB; the meta server is a log store in a process of its own",
        DURABLE: "two nodes, 1 partition with a slave, ack = synced, min_replicas = 2",
        REDIS: f"redis-server {version} of Debian, appendonly, appendfsync everysec",
        ALWAYS: f"redis-server {version} of Debian, appendonly, appendfsync always",
        ONE: "as zeppelin; two redis-benchmark, with half of the connections each, at once",
        TWO: f"two nodes with {PARTITIONS // 2} partitions each, a redis-benchmark for each",
        OURS_CLUSTER: "the same, redis-benchmark --cluster",
        REDIS_CLUSTER: f"three masters of redis-server {version}, everysec, --cluster",
    }
    return about[name]


@contextlib.contextmanager
def running(name: str, folder: pathlib.Path) -> Iterator[Endpoint]:
    """A system in a folder below this one."""
    with (
        tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as own,
        _STARTS[name](pathlib.Path(own)) as endpoint,
    ):
        yield endpoint


@contextlib.contextmanager
def _zeppelin(
    folder: pathlib.Path,
    *,
    nodes: int,
    config: TableConfig,
    is_cluster: bool = False,
    has_halves: bool = False,
) -> Iterator[Endpoint]:
    package = redis_tools()
    with kv_processes(folder, nodes=nodes, settings=SETTINGS) as cluster:
        login = cluster.create_table(TABLE, config)
        masters = [cluster.nodes[cluster.master_of(TABLE, n)] for n in range(config.partitions)]
        ports = [cluster.ports[master.name][0] for master in masters]
        # One key tag of a partition of each node, or of any two where there is one node.
        halves = (0, next((n for n, port in enumerate(ports) if port != ports[0]), 1))
        yield Endpoint(
            port=ports[0],
            halves=tuple((ports[n], _tag_in(n)) for n in halves) if has_halves else (),
            processes=tuple(node.pid for node in cluster.nodes.values()),
            program=package.program("redis-benchmark"),
            environment=package.environment,
            user=login.user,
            password=login.password,
            is_cluster=is_cluster,
        )


def _tag_in(partition: int) -> str:
    """One whose keys are in a partition."""
    slots = slots_of_place(partition, PARTITIONS)
    return next(tag for n in range(SLOTS) if slot_of((tag := f"t{n}").encode()) in slots)


@contextlib.contextmanager
def _redis(folder: pathlib.Path, *, fsync: str) -> Iterator[Endpoint]:
    package = redis_tools()
    (port,) = free_ports(1)
    with _redis_server(package, folder, port, f"--appendfsync={fsync}") as pid:
        yield _redis_endpoint(package, port, (pid,))


@contextlib.contextmanager
def _redis_cluster(folder: pathlib.Path) -> Iterator[Endpoint]:
    # They listen for one another at a port that is 10,000 higher.
    package, ports = redis_tools(), [port for port in free_ports(60) if port < 55_000][:3]
    with contextlib.ExitStack() as stack:
        pids = []
        for port in ports:
            own = folder / str(port)
            own.mkdir()
            server = _redis_server(
                package, own, port, "--appendfsync=everysec", "--cluster-enabled=yes"
            )
            pids.append(stack.enter_context(server))
        addresses = [f"127.0.0.1:{port}" for port in ports]
        tool = package.program("redis-cli")
        subprocess.run(
            (tool, "--cluster", "create", *addresses, "--cluster-yes"),
            env=package.environment,
            capture_output=True,
            check=True,
            timeout=START_S_MAX,
        )
        _wait_until(lambda: b"cluster_state:ok" in _said(package, ports[-1], "CLUSTER", "INFO"))
        yield _redis_endpoint(package, ports[0], tuple(pids), is_cluster=True)


def _redis_endpoint(
    package: debian.Package, port: int, processes: tuple[int, ...], *, is_cluster: bool = False
) -> Endpoint:
    return Endpoint(
        port=port,
        processes=processes,
        program=package.program("redis-benchmark"),
        environment=package.environment,
        is_cluster=is_cluster,
    )


@contextlib.contextmanager
def _redis_server(
    package: debian.Package, folder: pathlib.Path, port: int, *options: str
) -> Iterator[int]:
    command = [package.program("redis-server"), "--port", str(port), "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "yes", "--bind", "127.0.0.1", "--loglevel", "warning"]
    for option in options:
        command += option.split("=")
    with _process(command, package.environment) as pid:
        _wait_until(lambda: b"PONG" in _said(package, port, "PING"))
        yield pid


def _said(package: debian.Package, port: int, *words: str) -> bytes:
    done = subprocess.run(
        (package.program("redis-cli"), "-p", str(port), *words),
        env=package.environment,
        capture_output=True,
        check=False,
        timeout=START_S_MAX,
    )
    return done.stdout


@contextlib.contextmanager
def _etcd(folder: pathlib.Path) -> Iterator[Endpoint]:
    program, _ = programs.etcd()
    client, peer = free_ports(2)
    urls = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    command = [program, f"--data-dir={folder}/data", "--name=one", "--logger=zap"]
    command += ["--log-level=error", f"--listen-client-urls={urls[0]}"]
    command += [f"--advertise-client-urls={urls[0]}", f"--listen-peer-urls={urls[1]}"]
    command += [f"--initial-advertise-peer-urls={urls[1]}", f"--initial-cluster=one={urls[1]}"]
    with _process(command, None) as pid:
        _wait_until(lambda: _accepts(client))
        yield Endpoint(
            port=client, processes=(pid,), program=programs.go_program("etcd_load"), is_etcd=True
        )


@contextlib.contextmanager
def _process(command: list[str], environment: dict[str, str] | None) -> Iterator[int]:
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def _wait_until(is_ready: Callable[[], bool]) -> None:
    end = time.monotonic() + START_S_MAX
    while not is_ready():
        if time.monotonic() > end:
            raise ClusterFailed(f"it is not ready after {START_S_MAX:.0f} s")
        time.sleep(0.05)


_ALONE = TableConfig(partitions=PARTITIONS, replicas=1, ack="written")
_STARTS: dict[str, Running] = {
    OURS: lambda folder: _zeppelin(folder, nodes=1, config=_ALONE),
    DURABLE: lambda folder: _zeppelin(
        folder,
        nodes=2,
        config=TableConfig(partitions=1, replicas=2, min_replicas=2, ack="synced"),
    ),
    REDIS: lambda folder: _redis(folder, fsync="everysec"),
    ALWAYS: lambda folder: _redis(folder, fsync="always"),
    ETCD: _etcd,
    ONE: lambda folder: _zeppelin(folder, nodes=1, config=_ALONE, has_halves=True),
    TWO: lambda folder: _zeppelin(folder, nodes=2, config=_ALONE, has_halves=True),
    OURS_CLUSTER: lambda folder: _zeppelin(folder, nodes=2, config=_ALONE, is_cluster=True),
    REDIS_CLUSTER: _redis_cluster,
}
