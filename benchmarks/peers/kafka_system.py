"""Kafka from Maven: three processes, each broker and controller, loaded through librdkafka."""

import pathlib
import re
import sys
from collections.abc import Sequence

import confluent_kafka
import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.kits.install.cache import NotInstalled
from tests.kits.servers.kafka import CLUSTER_ID, VERSION, install

from benchmarks.harness.system import NODES, Layout, Load, NotAvailable
from benchmarks.peers import kafka_load

HEAP = "512m"
JAVA_OPTIONS = (
    f"-Xms{HEAP}",
    f"-Xmx{HEAP}",
    # Those of Kafka's own start script.
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
LOGGING = """log4j.rootLogger=WARN, output
log4j.logger.org.apache.kafka.raft.QuorumState=INFO
log4j.appender.output=org.apache.log4j.ConsoleAppender
log4j.appender.output.layout=org.apache.log4j.PatternLayout
log4j.appender.output.layout.ConversionPattern=%d %p %m (%c)%n
"""
LEADS = re.compile(r"Completed transition to Leader\(.*?epoch=(\d+)")
ASK_TIMEOUT_S = 2.0


class KafkaSystem:
    """One topic whose partitions are the groups; the log is synced after each batch, or never."""

    groups_max = 1 << 10
    has_batches = True
    warm_up_s = 30.0
    """Before that Java has not compiled what is busy, and throughput is a third."""

    def __init__(self, *, is_synced: bool, topics: Sequence[str] = (kafka_load.TOPIC,)) -> None:
        """Loads write to the first topic, and read from the others."""
        self.name = "kafka-fsync" if is_synced else "kafka"
        self._topics = topics
        self._topic_settings = {"flush.messages": "1"} if is_synced else {}
        self._jars = pathlib.Path()

    def prepare(self) -> str:
        try:
            self._jars = install()
        except NotInstalled as problem:
            raise NotAvailable(str(problem)) from problem
        synced = "flush.messages=1" if self._topic_settings else "no fsync (its default)"
        return (
            f"Kafka {VERSION}, KRaft with combined brokers and controllers, heap {HEAP}, three "
            f"replicas, min.insync.replicas=2, {synced}, defaults otherwise; through "
            f"confluent-kafka {confluent_kafka.version()}, acks=all, idempotent, one producer for "
            "all clients"
        )

    def node_command(self, layout: Layout, node: int) -> list[str]:
        folder = layout.node_folder(node)
        controllers = layout.peer_addresses()
        voters = ",".join(f"{other}@{controllers[other]}" for other in range(NODES))
        broker = f"PLAINTEXT://{layout.client_addresses()[node]}"
        _write(
            f"{folder}/server.properties",
            "process.roles=broker,controller",
            f"node.id={node}",
            f"controller.quorum.voters={voters}",
            f"listeners={broker},CONTROLLER://{controllers[node]}",
            f"advertised.listeners={broker}",
            "controller.listener.names=CONTROLLER",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"log.dirs={folder}/data",
            f"default.replication.factor={NODES}",
            "min.insync.replicas=2",
        )
        # What `kafka-storage format` writes, without a Java machine to start for it.
        pathlib.Path(f"{folder}/data").mkdir(exist_ok=True)
        _write(
            f"{folder}/data/meta.properties",
            "version=1",
            f"cluster.id={CLUSTER_ID}",
            f"node.id={node}",
        )
        _write(f"{folder}/log4j.properties", LOGGING)
        logging = f"-Dlog4j.configuration=file:{folder}/log4j.properties"
        classes = ["-cp", f"{self._jars}/*", "kafka.Kafka", f"{folder}/server.properties"]
        return ["java", *JAVA_OPTIONS, logging, *classes]

    def leaders(self, layout: Layout) -> list[int | None]:
        """Makes the topic as soon as all brokers are there."""
        admin = AdminClient({"bootstrap.servers": addresses(layout), "log_level": 0})
        try:
            known = admin.list_topics(timeout=ASK_TIMEOUT_S)
            topic = known.topics.get(self._topics[0])
            if topic is None and len(known.brokers) == NODES:
                self._create_topics(admin, layout)
        except KafkaException as problem:
            raise ConnectionError(str(problem)) from problem
        if topic is None:
            return [None]
        # A partition without a leader is led by -1.
        led = {each.id: each.leader for each in topic.partitions.values()}
        return [led[each] if led[each] >= 0 else None for each in sorted(led)]

    def load_command(self, layout: Layout, load: Load, leader: int) -> list[str]:  # noqa: ARG002
        # One producer sends what 64 clients have in flight in few requests: better than 64 of them.
        shared = msgspec.structs.replace(load, clients=1)
        program = [sys.executable, "-m", "benchmarks.peers.kafka_load"]
        return [*program, f"--addresses={addresses(layout)}", *shared.flags()]

    def _create_topics(self, admin: AdminClient, layout: Layout) -> None:
        # The first partition is not led by the active controller: to lose both at once would be
        # worse for Kafka, and who can afford it keeps them apart.
        first = (_active_controller(layout) + 1) % NODES
        replicas = [
            [(first + partition + other) % NODES for other in range(NODES)]
            for partition in range(layout.groups)
        ]
        topics = [
            NewTopic(
                topic,
                num_partitions=layout.groups,
                replica_assignment=replicas,
                config=self._topic_settings,
            )
            for topic in self._topics
        ]
        for created in admin.create_topics(topics).values():
            problem = created.exception(ASK_TIMEOUT_S)
            # The broker that was asked may not have heard yet of a topic that is there.
            if problem is not None and not _is_there_already(problem):
                raise problem


def _active_controller(layout: Layout) -> int:
    """The node whose log has the latest election; clients are not told."""
    elected = []
    for node in range(NODES):
        log = pathlib.Path(layout.node_log(node)).read_text()
        elected += [(int(epoch), node) for epoch in LEADS.findall(log)]
    if not elected:
        raise ConnectionError("no controller is active yet")
    return max(elected)[1]


def _is_there_already(problem: BaseException) -> bool:
    code = KafkaError.TOPIC_ALREADY_EXISTS
    return isinstance(problem, KafkaException) and problem.args[0].code() == code


def addresses(layout: Layout) -> str:
    return ",".join(layout.client_addresses())


def _write(file: str, *lines: str) -> None:
    pathlib.Path(file).write_text("\n".join(lines) + "\n")
