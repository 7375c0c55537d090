"""Consumers of SLS's SDKs, as they are, through join, split, leave and crash: no record is lost,
none comes twice, and those of a key come in order.
"""

import hashlib
import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kits.loghub.gateways import ThreadedGateway, threaded_gateway
from tests.kits.loghub.other_workers import (
    Worker,
    another_port,
    listening_at,
    wait_until,
    web_addresses,
)
from tests.kits.loghub.sls_programs import go_command, java_command, python_command
from tests.kits.loghub.sls_sdk import Sdk, sls_sdk

pytestmark = pytest.mark.needs("sls_python")

KEYS = 12
SHARDS = 3
# The Java SDK refuses names that are shorter than SLS allows.
PROJECT, LOGSTORE = "project", "stream"


class Stream:
    """A logstore, somebody who puts numbered records there, and the workers that read them."""

    def __init__(
        self,
        sdk: Sdk,
        served: ThreadedGateway,
        addresses: list[str],
        command: list[str],
        folder: Path,
    ) -> None:
        self._sdk = sdk
        self.served = served
        self._folder = folder
        self.addresses = addresses
        self.workers: list[Worker] = []
        self.put: list[str] = []
        self._command = command
        self._stopping = threading.Event()
        self._putting = threading.Thread(target=self._put_all)
        self.client = sdk.client(served)
        self.client.create_project(PROJECT, "of the test")
        self.client.create_logstore(PROJECT, LOGSTORE, ttl=7, shard_count=SHARDS)

    def _put_all(self) -> None:
        client, number = self._sdk.client(self.served), 0
        log = self._sdk.module("aliyun.log")
        while not self._stopping.is_set():
            key, number = number % KEYS, number + 1
            value = f"{key}-{number}"
            items = [log.LogItem(int(time.time()), contents=[("message", value)])]
            digest = hashlib.md5(str(key).encode()).hexdigest()
            client.put_logs(log.PutLogsRequest(PROJECT, LOGSTORE, "", "", items, hashKey=digest))
            self.put.append(value)
            self._stopping.wait(0.02)
        client._session.close()

    def begin(self) -> None:
        self._putting.start()

    def end(self) -> None:
        self._stopping.set()
        if self._putting.is_alive():
            self._putting.join()
        for worker in self.workers:
            worker.close()
        self.client._session.close()

    def worker(self, name: str) -> Worker:
        """One more; they take the gateways in turn."""
        given = {
            "id": self.served.admin.id,
            "secret": self.served.admin.secret,
            "project": PROJECT,
            "logstore": LOGSTORE,
            "group": "readers",
            "consumer": name,
            "heartbeat_s": 1,
            "order": True,
        }
        address = self.addresses[len(self.workers) % len(self.addresses)]
        hosts = self._folder / f"hosts-{len(self.workers)}"
        hosts.write_text(f"{address.partition(':')[0]} {PROJECT}.sls.test\n")
        environment = {
            **os.environ,
            "http_proxy": f"http://{address}",
            "no_proxy": "",
            "JDK_JAVA_OPTIONS": f"-Djdk.net.hosts.file={hosts}",
        }
        self.workers.append(Worker([*self._command, "consume", json.dumps(given)], environment))
        return self.workers[-1]

    def values(self) -> Counter[str]:
        return Counter(value for worker in self.workers for value in worker.values)

    def stop_putting(self) -> None:
        self._stopping.set()
        self._putting.join()

    def check_all_are_read(self) -> None:
        self.stop_putting()
        wait_until(
            lambda: set(self.put) <= set(self.values()),
            what="all records are read",
        )


COMMANDS = {"python": python_command, "go": go_command, "java": java_command}


@pytest.fixture(
    params=[
        "python",
        pytest.param("go", marks=pytest.mark.needs("sls_go")),
        pytest.param("java", marks=pytest.mark.needs("sls_java", "port_80")),
    ]
)
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stream]:
    ports = ("127.0.0.1:0", "127.0.0.1:0") if request.param != "java" else web_addresses()
    first, second = map(listening_at, ports)
    with (
        sls_sdk() as sdk,
        threaded_gateway(tmp_path, settings=first) as served,
        another_port(served, second) as other,
    ):
        command = COMMANDS[request.param]()
        made = Stream(sdk, served, [served.address, other], command, tmp_path)
        try:
            yield made
        finally:
            made.end()


def is_at_work(worker: Worker) -> Callable[[], bool]:
    """Whether it reads something new from now on."""
    before = len(worker.read)
    return lambda: len(worker.read) > before + 3


def test_nothing_is_lost_or_doubled_as_workers_join_shards_split_and_workers_leave(
    stream: Stream,
) -> None:
    stream.begin()
    first = stream.worker("first")
    wait_until(lambda: len(first.shards) == SHARDS, what="the first has all shards")
    second = stream.worker("second")
    wait_until(lambda: len(second.shards) >= 1, what="the second has its part")
    # A worker that this machine stops for longer than that would be thought dead.
    stream.client.update_consumer_group(PROJECT, LOGSTORE, "readers", 15, True)
    stream.client.split_shard(PROJECT, LOGSTORE, 0, "2" + "0" * 31)
    children = range(SHARDS, SHARDS + 2)
    wait_until(
        lambda: set(children) <= {*first.shards, *second.shards},
        what="both halves of the shard are read",
    )
    first.stop()
    for shard in (1, 2, *children):
        wait_until(
            lambda shard=shard: shard in second.shards,  # type: ignore[misc]
            what=f"the second has taken over shard {shard}",
        )
    stream.check_all_are_read()
    second.stop()
    twice = {value: count for value, count in stream.values().items() if count > 1}
    assert twice == {}
    assert set(stream.values()) == set(stream.put)
    check_order(first, second)


def check_order(*workers: Worker) -> None:
    """Of each key, in each worker; over all of them the later worker goes on behind."""
    for worker in workers:
        numbers: dict[str, list[int]] = defaultdict(list)
        for value in worker.values:
            key, _, number = value.partition("-")
            numbers[key].append(int(number))
        assert all(each == sorted(each) for each in numbers.values())


def test_what_a_killed_worker_had_is_read_by_another(stream: Stream) -> None:
    stream.begin()
    first, second = stream.worker("first"), stream.worker("second")
    wait_until(
        lambda: bool(first.shards and second.shards),
        what="both have their part",
    )
    first.kill()
    wait_until(lambda: len(second.shards) == SHARDS, what="the second has all shards")
    third = stream.worker("first")  # under the same name
    wait_until(is_at_work(third), what="the first is back")
    stream.check_all_are_read()
    for worker in (second, third):
        worker.stop()
    assert set(stream.values()) == set(stream.put)
