"""Groups that are compared: leases in SQLite and in PostgreSQL, and Kafka's own consumer group."""

import contextlib
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import sqlalchemy
from confluent_kafka import version
from tests.kits.install.cache import NotInstalled
from tests.kits.servers.databases import PostgresServer
from tests.kits.servers.kafka import VERSION

from benchmarks.consumers.members import Members
from benchmarks.consumers.moving import MEMBERS, SHARDS
from benchmarks.harness.cluster import Cluster
from benchmarks.harness.system import NotAvailable, Prepared
from benchmarks.peers import kafka_member
from benchmarks.peers.kafka_system import KafkaSystem, addresses

TOPIC: Final = "moving"


class Group(Prepared, Protocol):
    """Ten processes that share 100 shards."""

    def running(self, folder: pathlib.Path) -> contextlib.AbstractContextManager[Members]: ...


def _by_leases(store: str) -> Callable[[int], Sequence[str]]:
    program = [sys.executable, "-m", "benchmarks.consumers.lease_member", f"--store={store}"]
    return lambda number: [*program, f"--name=worker-{number}", f"--shards={SHARDS}"]


class SqliteGroup:
    name = "leases, SQLite"

    def prepare(self) -> str:
        return (
            f"SQLite through SQLAlchemy {sqlalchemy.__version__} and aiosqlite, one file, "
            "synchronous=FULL; T = 10 s and all other settings as they come"
        )

    @contextlib.contextmanager
    def running(self, folder: pathlib.Path) -> Iterator[Members]:
        with (
            tempfile.TemporaryDirectory(prefix="leases-", dir=folder) as data,
            Members(MEMBERS, _by_leases(f"sqlite:///{data}/leases.sqlite")) as members,
        ):
            yield members


class PostgresGroup:
    name = "leases, PostgreSQL"

    def prepare(self) -> str:
        try:
            PostgresServer.check()
        except (NotInstalled, OSError) as problem:
            raise NotAvailable(str(problem)) from problem
        return (
            f"PostgreSQL {PostgresServer.library[2]} through SQLAlchemy "
            f"{sqlalchemy.__version__} and asyncpg, fsync on; T = 10 s"
        )

    @contextlib.contextmanager
    def running(self, folder: pathlib.Path) -> Iterator[Members]:  # noqa: ARG002
        with PostgresServer() as server, Members(MEMBERS, _by_leases(server.url())) as members:
            yield members


class KafkaGroup:
    name = "kafka, members"

    def __init__(self) -> None:
        self._system = KafkaSystem(is_synced=False, topics=(TOPIC,))

    def prepare(self) -> str:
        self._system.prepare()
        settings = ", ".join(
            f"{name}={value}"
            for name, value in kafka_member.SETTINGS.items()
            if name.endswith((".ms", ".strategy"))
        )
        return (
            f"Kafka {VERSION}, three brokers, 100 partitions with a record each 50 ms; members "
            f"through confluent-kafka {version()} with {settings}"
        )

    @contextlib.contextmanager
    def running(self, folder: pathlib.Path) -> Iterator[Members]:
        with Cluster(self._system, folder=folder, groups=SHARDS) as cluster:
            cluster.settle()
            program = [sys.executable, "-m", "benchmarks.peers.kafka_member"]
            program += [f"--addresses={addresses(cluster.layout)}", f"--topic={TOPIC}"]
            with (
                Members(1, lambda _: [*program, f"--feed={SHARDS}"]),
                Members(MEMBERS, lambda _: [*program, "--group=benchmark"]) as members,
            ):
                yield members


GROUPS: Final[dict[str, Callable[[], Group]]] = {
    "sqlite": SqliteGroup,
    "postgresql": PostgresGroup,
    "kafka": KafkaGroup,
}
