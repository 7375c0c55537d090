"""A stream beside a cluster of Zeppelin's: a gateway, and processes that capture and replay.

with kv_processes(folder, settings=STREAMS) as cluster, capturing(cluster, folder) as streams:
    streams.create_logstore("changes")
    capture = streams.capture("changes", login)
    capture.start()
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client import AsyncLogHubClient
from raftwood.loghub.client.pulled_batches import PulledBatch
from tests.kits.ports import LOCAL, free_ports
from tests.kits.processes import RAFTWOOD, RealProcess
from tests.kits.zeppelin.processes import KvProcesses, Login

PROJECT = "tables"
STREAMS: Mapping[str, Any] = {"loghub.log_replicas": 1, "gateway.http_listen": ""}
"""For `kv_processes`."""
Result = TypeVar("Result")


class Streams:
    """Use `capturing`; nothing of it outlives the block."""

    def __init__(self, cluster: KvProcesses, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._access: dict[str, str] = {}
        self._count = 0
        (port,) = free_ports(1)
        self.address = f"{LOCAL}:{port}"
        self.processes: list[RealProcess] = []
        self.gateway = self._process(
            ("gateway", "start"), cluster.config, f"--set=gateway.listen={self.address}"
        )

    def _process(self, command: tuple[str, ...], config: Path, *more: str) -> RealProcess:
        self._count += 1
        name = f"{command[-1] if command[0] == 'gateway' else command[1]}-{self._count}"
        whole = (*RAFTWOOD, *command, f"--config={config}", *more)
        made = RealProcess(name, self._folder, whole)
        self.processes.append(made)
        return made

    def start(self) -> None:
        self.gateway.start()
        printed = self._cluster.run("key", "create", "*=admin", "--format=json")
        (made,) = json.loads(printed)
        self._access = {"key_id": made["id"], "secret": made["secret"]}
        self.ask(lambda client: client.create_project(PROJECT))

    def discard(self) -> None:
        for each in self.processes:
            each.discard()

    def ask(self, work: Callable[[AsyncLogHubClient], Awaitable[Result]]) -> Result:
        """Something of the gateway."""

        async def main() -> Result:
            with real_environment() as environment:
                async with await AsyncLogHubClient.connect(
                    environment,
                    self.address,
                    access_key=self._access["key_id"],
                    access_secret=self._access["secret"],
                ) as client:
                    return await work(client)

        return asyncio.run(main())

    def create_logstore(self, name: str, *, shards: int = 2) -> None:
        self.ask(lambda client: client.create_logstore(PROJECT, name, shard_count=shards))

    def capture(self, logstore: str, login: Login, *more: str) -> RealProcess:
        """A process that captures a table; start it."""
        return self._of_table("capture", logstore, login, more)

    def replay(self, logstore: str, login: Login, *more: str) -> RealProcess:
        """A process that applies a stream to a table; start it."""
        leases = f"--store=sqlite:///{self._folder}/leases.sqlite"
        return self._of_table("replay", logstore, login, (leases, "--timeout=2s", *more))

    def _of_table(
        self, verb: str, logstore: str, login: Login, more: tuple[str, ...]
    ) -> RealProcess:
        nodes = [node for node in self._cluster.nodes.values() if node.is_running]
        addresses = [f"{self._cluster.host}:{self._cluster.ports[node.name][0]}" for node in nodes]
        config = self._folder / f"{verb}-{login.table}.toml"
        values = {
            "zeppelin_client.addresses": addresses,
            "zeppelin_client.user": login.user,
            "zeppelin_client.password": login.password,
            "loghub_client.gateways": [self.address],
            "loghub_client.access_key": self._access["key_id"],
            "loghub_client.access_secret": self._access["secret"],
            "logs.format": "json",
        }
        config.write_text("".join(f"{key} = {json.dumps(each)}\n" for key, each in values.items()))
        config.chmod(0o600)
        return self._process(("kv", verb, f"{PROJECT}/{logstore}"), config, *more)

    def batches(self, logstore: str) -> list[PulledBatch]:
        """All that a logstore has, each shard in its order."""

        async def read(client: AsyncLogHubClient) -> list[PulledBatch]:
            async with client.reader(PROJECT, logstore) as reader:
                return [batch async for batch in reader.batches()]

        return self.ask(read)


@contextmanager
def capturing(cluster: KvProcesses, folder: Path) -> Iterator[Streams]:
    """A gateway that runs; it and all that was started by it end with the block."""
    streams = Streams(cluster, folder)
    try:
        streams.start()
        yield streams
    finally:
        streams.discard()
