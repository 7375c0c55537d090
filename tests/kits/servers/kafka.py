"""A real Kafka broker for tests, installed by Maven into `.cache` and run on a free port."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kits.install import maven
from tests.kits.ports import free_ports

VERSION = "3.9.1"
LIBRARIES = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    # The server logs through this one and leaves it for its distribution to provide.
    ("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
CLUSTER_ID = "UmFmdHdvb2RCZW5jaDAwMA"
READY_SECONDS_MAX = 180


def install() -> Path:
    """The folder with the broker's libraries, fetched on first use."""
    return maven.install("kafka", *LIBRARIES)


@contextmanager
def kafka_broker(topic: str, *, partitions: int) -> Iterator[str]:
    """The address of one that has a topic; it ends with the block."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker, controller = (f"127.0.0.1:{port}" for port in free_ports(2))
        _configure(folder, broker=broker, controller=controller)
        options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        program = ("-cp", f"{install()}/*", "kafka.Kafka", f"{folder}/server.properties")
        with (
            (folder / "output").open("wb") as output,
            subprocess.Popen(("java", *options, *program), stdout=output, stderr=output) as process,
        ):
            try:
                _make_topic(broker, topic, partitions, process, folder / "output")
                yield broker
            finally:
                process.kill()


def _configure(folder: Path, *, broker: str, controller: str) -> None:
    lines = (
        "process.roles=broker,controller",
        "node.id=1",
        f"controller.quorum.voters=1@{controller}",
        f"listeners=PLAINTEXT://{broker},CONTROLLER://{controller}",
        f"advertised.listeners=PLAINTEXT://{broker}",
        "controller.listener.names=CONTROLLER",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        f"log.dirs={folder}/data",
        "offsets.topic.replication.factor=1",
    )
    (folder / "server.properties").write_text("\n".join(lines))
    # What `kafka-storage format` writes, without a Java machine to start for it.
    (folder / "data").mkdir()
    stamp = ("version=1", f"cluster.id={CLUSTER_ID}", "node.id=1")
    (folder / "data" / "meta.properties").write_text("\n".join(stamp))


def _make_topic(
    address: str, topic: str, partitions: int, process: subprocess.Popen[bytes], output: Path
) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
            made = admin.create_topics(
                [NewTopic(topic, num_partitions=partitions, replication_factor=1)],
                request_timeout=5,
            )
            made[topic].result()
            return
        except KafkaException:
            time.sleep(0.2)
    raise AssertionError(f"Kafka did not start: {output.read_text()[-2000:]}")
