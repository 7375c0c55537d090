"""All of Raftwood by one command, as processes that end with the block, and clients of it."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis.cluster import RedisCluster

from raftwood.loghub.client import LogHubClient
from raftwood.server.standalone import PORTS
from tests.kits.ports import consecutive_ports
from tests.kits.processes import RAFTWOOD, RealProcess


@contextmanager
def running(*arguments: str, folder: Path) -> Iterator[dict[str, Any]]:
    """What the ready file says; at the end it is told to stop, and has to end well."""
    process = RealProcess(arguments[0], folder, (*RAFTWOOD, *arguments))
    try:
        process.start()
        yield json.loads(process.ready_file.read_text())
        assert process.stop() == 0, process.tail()
    finally:
        process.discard()


@contextmanager
def standalone(folder: Path) -> Iterator[dict[str, Any]]:
    """All of it in one process."""
    base = f"--port-base={consecutive_ports(PORTS)}"
    with running("standalone", f"--data={folder / 'data'}", base, folder=folder) as parts:
        yield parts


def connected(parts: dict[str, Any]) -> LogHubClient:
    loghub = parts["loghub"]
    return LogHubClient.connect(
        loghub["native"],
        access_key=loghub["access_key_id"],
        access_secret=loghub["access_key_secret"],
    )


def redis_of(parts: dict[str, Any]) -> RedisCluster:
    kv = parts["kv"]
    return RedisCluster(kv["host"], kv["port"], username=kv["user"], password=kv["password"])


def ask(address: str, path: str, *, token: str = "") -> tuple[int, str]:
    """Over HTTP: the status, and what was told."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
