"""All of Raftwood with one command: in one process, or as a cluster of processes; data is kept."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.cluster import RedisCluster

from raftwood.app.standalone import PORTS
from raftwood.loghub.client import LogHubClient
from raftwood.loghub.model import LogKind
from tests.kits.raft.cluster import free_ports

WAIT_S_MAX = 90.0


@contextmanager
def running(*arguments: str, folder: Path) -> Iterator[dict[str, Any]]:
    """What the ready file says; at the end it is told to stop, and has to end well."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    with (
        open(folder / "output", "ab") as output,
        subprocess.Popen(
            (sys.executable, "-m", "raftwood.app", *arguments, f"--ready-file={ready}"),
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        ) as process,
    ):
        try:
            deadline = time.monotonic() + WAIT_S_MAX
            while not ready.exists():
                assert process.poll() is None, (folder / "output").read_text()
                assert time.monotonic() < deadline, (folder / "output").read_text()
                time.sleep(0.05)
            yield json.loads(ready.read_text())
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0, (folder / "output").read_text()
        finally:
            process.kill()


def connected(parts: dict[str, Any]) -> LogHubClient:
    loghub = parts["loghub"]
    return LogHubClient.connect(
        loghub["native"], key_id=loghub["access_key_id"], secret=loghub["access_key_secret"]
    )


def redis_of(parts: dict[str, Any]) -> RedisCluster:
    kv = parts["kv"]
    return RedisCluster(kv["host"], kv["port"], username=kv["user"], password=kv["password"])


@pytest.mark.parametrize(
    ("command", "ports"),
    [
        (("standalone",), PORTS),
        (("cluster", "up", "--stores=3", "--gateways=2", "--kv-nodes=2"), 14),
    ],
    ids=["standalone", "cluster up"],
)
def test_what_was_written_is_there_after_a_restart(
    tmp_path: Path, command: tuple[str, ...], ports: int
) -> None:
    base = consecutive_ports(ports)
    given = (*command, f"--data={tmp_path / 'data'}", f"--port-base={base}")
    with running(*given, folder=tmp_path) as first, connected(first) as client:
        with redis_of(first) as redis:
            for number in range(20):
                redis.set(f"key-{number}", number)
        client.create_project("p")
        for kind in LogKind:
            client.create_logstore("p", kind.value, shard_count=1, log=kind)
            with client.producer("p", kind.value) as producer:
                producer.send({"message": "kept"})
    with running(*given, folder=tmp_path) as second, connected(second) as client:
        assert (second["loghub"], second["kv"]) == (first["loghub"], first["kv"])
        with redis_of(second) as redis:
            assert [redis.incr(f"key-{number}") for number in range(20)] == [*range(1, 21)]
        assert second["loghub"]["url"].startswith("http://127.0.0.1:")
        for kind in LogKind:
            with client.producer("p", kind.value) as producer:
                producer.send({"message": "more"})
            with client.reader("p", kind.value) as reader:
                found = [record.contents["message"] for record in reader]
            assert (kind, found) == (kind, ["kept", "more"])
    assert (tmp_path / "ready.json").stat().st_mode & 0o077 == 0


def consecutive_ports(count: int) -> int:
    """The first of some that nobody uses at the moment."""
    for _ in range(100):
        (base,) = free_ports(1)
        if base + count < 65_000 and all(is_free(base + place) for place in range(1, count)):
            return base
    raise AssertionError("no ports are free")


def is_free(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
