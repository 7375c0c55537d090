"""Processes of release 0.1.0 and of this one in one cluster: an upgrade, half way through."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raftwood.clogs.receiver_settings import ClogsSettings
from raftwood.server.local_cluster import LocalCluster
from tests.kits.ports import consecutive_ports
from tests.kits.processes import RAFTWOOD, RealProcess
from tests.kits.releases.release_processes import until

WHEEL = Path(__file__).parents[1] / "fixtures/0.1.0/raftwood-0.1.0-py3-none-any.whl"
OLD = (sys.executable, "-m", "raftwood.app")
STORES, GATEWAYS, KV_NODES = 3, 2, 2
LINES = 200


class MixedCluster:
    """Of each kind of process, the last one is of the old release."""

    def __init__(self, folder: Path) -> None:
        self.old_source = folder / "release"
        with zipfile.ZipFile(WHEEL) as wheel:
            wheel.extractall(self.old_source)
        ports = STORES + 3 * GATEWAYS + KV_NODES
        self.cluster = LocalCluster(
            str(folder / "cluster"), stores=STORES, gateways=GATEWAYS, kv_nodes=KV_NODES,
            port_base=consecutive_ports(ports),
        )  # fmt: skip
        self.cluster.prepare()
        self.processes: dict[str, RealProcess] = {}
        self.settings = {"RAFTWOOD_CONFIG": self.cluster.config_file}

    def _environment(self, *, old: bool) -> dict[str, str]:
        return {"PYTHONPATH": str(self.old_source)} if old else {}

    def begin(self, name: str, arguments: Sequence[str], *, old: bool) -> None:
        command = (*(OLD if old else RAFTWOOD), *arguments)
        process = RealProcess(name, Path(self.cluster.folder), command)
        self.processes[name] = process
        process.begin(**self._environment(old=old))

    def run_command(
        self, *arguments: str, old: bool, lines: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of one of the two releases to its end."""
        return subprocess.run(
            (*(OLD if old else RAFTWOOD), *arguments),
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(sys.path)}
            | self.settings
            | self._environment(old=old),
            timeout=240,
            check=False,
        )

    def say(self, *arguments: str, old: bool, lines: Sequence[str] = ()) -> str:
        """Returns what a command of one of the two releases prints; the command must succeed."""
        done = self.run_command(*arguments, old=old, lines=lines)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    @property
    def is_created(self) -> bool:
        """`cluster status` fails while HAKeeper still creates the cluster."""
        done = self.run_command("cluster", "status", old=False)
        return done.returncode == 0 and "running" in done.stdout

    def rows(self, *arguments: str, old: bool) -> list[dict[str, Any]]:
        text = self.say(*arguments, "--format=json", old=old).strip()
        if text.startswith("["):
            found: list[dict[str, Any]] = json.loads(text)
            return found
        return [json.loads(line) for line in text.splitlines()]

    def run_stores(self) -> None:
        for number in self.cluster.stores:
            arguments = self.cluster.store_arguments(number)
            self.begin(f"store-{number}", arguments, old=number == STORES)

    def run_others(self) -> None:
        cluster = self.cluster
        for number in cluster.gateways:
            arguments = cluster.gateway_arguments(number, ClogsSettings())
            self.begin(f"gateway-{number}", arguments, old=number == GATEWAYS)
        for number in cluster.kv_nodes:
            arguments = cluster.kv_arguments(number)
            self.begin(f"kv-{number}", arguments, old=number == KV_NODES)

    def wait_ready(self) -> None:
        for process in self.processes.values():
            process.wait_ready()


@contextmanager
def mixed_cluster(folder: Path) -> Iterator[MixedCluster]:
    mixed = MixedCluster(folder)
    try:
        mixed.run_stores()
        until(lambda: all(each.is_running for each in mixed.processes.values()))
        mixed.wait_ready()
        until(lambda: mixed.is_created)
        mixed.run_others()
        mixed.wait_ready()
        yield mixed
        for kind in ("gateway-", "kv-", "store-"):
            for name, process in mixed.processes.items():
                if name.startswith(kind) and process.is_running:
                    assert process.stop() == 0, process.tail()
    finally:
        for process in mixed.processes.values():
            process.discard()


def test_a_cluster_of_two_releases_serves_and_loses_nothing(tmp_path: Path) -> None:
    with mixed_cluster(tmp_path) as mixed:
        _logs(mixed)
        _streams(mixed)
        _tables(mixed)


def _logs(mixed: MixedCluster) -> None:
    """Each release appends and reads what the other appended, and while a store is away."""
    mixed.say("log", "create", "orders", old=False)
    told = []
    for round_number, old in enumerate((False, True)):
        text = f"record of round {round_number}"
        mixed.say("log", "append", "orders", text, old=old)
        told.append(text)
    for old in (False, True):
        found = mixed.rows("log", "read", "orders", "--from=1", old=old)
        assert [each["data"] for each in found if each["data"]] == told
    away = mixed.processes["store-1"]
    away.kill_now()
    mixed.say("log", "append", "orders", "while a store is away", old=True)
    told.append("while a store is away")
    away.begin()
    away.wait_ready()
    found = mixed.rows("log", "read", "orders", "--from=1", old=False)
    assert [each["data"] for each in found if each["data"]] == told


def _streams(mixed: MixedCluster) -> None:
    """What is put through one release's gateway is read through the other's, once and in order."""
    (key,) = mixed.rows("key", "create", "*=admin", old=False)
    mixed.settings |= {
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY": key["id"],
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET": key["secret"],
    }
    gateways = list(mixed.cluster.gateways.values())
    through = [{"RAFTWOOD_LOGHUB_CLIENT__GATEWAYS": each} for each in gateways]
    mixed.settings |= through[0]
    mixed.say("project", "create", "shop", old=False)
    mixed.say("logstore", "create", "shop/orders", "--shards=2", old=False)
    sent = []
    for number, old in enumerate((False, True)):
        mixed.settings |= through[number]
        lines = [f"line {index} of release {number}" for index in range(LINES)]
        mixed.say("produce", "shop/orders", old=old, lines=lines)
        sent += lines
    for number, old in enumerate((True, False)):
        mixed.settings |= through[number]
        found = mixed.rows("tail", "shop/orders", "--from=begin", old=old)
        texts = [next(iter(each["fields"].values())) for each in found]
        assert sorted(texts) == sorted(sent)


def _tables(mixed: MixedCluster) -> None:
    """A partition has a master of one release and a slave of the other."""
    given = ("kv", "table", "create", "sessions", "--partitions=4", "--replicas=2")
    made = mixed.rows(*given, old=False)[0]
    nodes = list(mixed.cluster.kv_nodes.values())
    mixed.settings |= {
        "RAFTWOOD_ZEPPELIN_CLIENT__ADDRESSES": ",".join(nodes),
        "RAFTWOOD_ZEPPELIN_CLIENT__USER": made["user"],
        "RAFTWOOD_ZEPPELIN_CLIENT__PASSWORD": made["password"],
    }
    values = {f"key-{index}": f"value {index}" for index in range(4)}
    for index, (key, value) in enumerate(values.items()):
        mixed.say("kv", "set", key, value, old=index % 2 == 1)
    for old in (False, True):
        found = mixed.rows("kv", "get", *values, old=old)
        assert {each["key"]: each["value"] for each in found} == values
