"""`raftwood kv` with a meta server in memory: tables, users, nodes, and what is wrong with them."""

import asyncio
import io
import json
import os
import pty
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.kits.dlog.command_kit import Commands
from tests.kits.server.kv_cluster import Cluster
from tests.kits.zeppelin.meta.group_in_memory import GROUP
from tests.kits.zeppelin.meta.tables import A, B, C, registered

from raftwood.cli import cluster_target
from raftwood.cli.cluster_target import LogTarget
from raftwood.cli.command_line import run
from raftwood.zeppelin.meta.changes import ChangeMaster, MarkSlaves, NodeDown
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.passwords import is_password


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    group = Cluster()

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[MetaClient]:
        yield MetaClient(group, GROUP)

    monkeypatch.setattr(cluster_target, "connected_zeppelin", connected)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RAFTWOOD_")]:
        monkeypatch.delenv(name)
    return group


@pytest.fixture
def kv(cluster: Cluster) -> Commands:
    cluster.change(*map(registered, (A, B, C)))
    return Commands()


def test_a_table_is_made_with_its_user_and_dropped_with_it(kv: Commands, cluster: Cluster) -> None:
    told = kv.run("kv", "table", "create", "orders", "--partitions=4", "--min-replicas=2")
    (user,) = cluster.machine.topology.users.values()
    (password,) = [line.split()[1] for line in told.splitlines() if line.startswith("password")]
    assert f"redis-cli -c -h a -p 1 --user orders --pass {password}" in told
    assert told.index("never again") < told.index("Next:")
    assert (user.name, user.table, user.may_write) == ("orders", "orders", True)
    assert is_password(password.encode(), user.password_hash)
    kv.run("kv", "table", "create", "orders", "--user=o", status=1, expect="'orders' exists")
    kv.run("kv", "table", "create", "more", "--user=orders", status=1, expect="choose another one")
    assert list(cluster.machine.topology.tables) == ["orders"]

    (row,) = kv.json("kv", "table", "list")
    assert (row["table"], row["partitions"], row["users"]) == ("orders", 4, ["orders"])
    shown = kv.json("kv", "table", "info", "orders")
    assert (shown["ack"], shown["min_replicas"]) == ("written", 2)
    assert [each["slots"] for each in shown["partition_list"]][1:3] == [[4096, 8191], [8192, 12287]]
    text = kv.run("kv", "table", "info", "orders")
    assert "12288-16383" in text
    assert "b (in sync, 0 B)" in text
    kv.run("kv", "table", "info", "others", status=1, expect="`raftwood kv table list`")

    kv.run("kv", "table", "drop", "orders", status=2, expect="give --yes")
    assert kv.json("kv", "table", "drop", "orders", "--yes") == [
        {"table": "orders", "users": ["orders"]}
    ]
    kv.run("kv", "table", "drop", "orders", "--yes", status=1, expect="no table 'orders'")
    assert kv.json("kv", "table", "list") == kv.json("kv", "user", "list") == []


def test_what_reads_tell_is_chosen_once_all_stores_know_of_it(
    kv: Commands, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = ["0.2.0", "0.1.0"]

    def with_keeper(_: LogTarget, work: Any) -> int:
        stores = [SimpleNamespace(store=n, version=each) for n, each in enumerate(versions)]

        async def describe() -> SimpleNamespace:
            return SimpleNamespace(stores=stores)

        status: int = asyncio.run(work(SimpleNamespace(describe=describe), None))
        return status

    monkeypatch.setattr(LogTarget, "with_keeper", with_keeper)
    kv.run("kv", "table", "create", "orders", "--min-replicas=2")
    assert kv.json("kv", "table", "info", "orders")["reads"] == "durable"
    kv.run(
        "kv", "table", "reads", "orders", "latest", status=1, expect="store 1 runs release 0.1.0"
    )
    assert cluster.machine.topology.tables["orders"].reads is msgspec.UNSET
    versions.pop()
    assert "latest" in kv.run("kv", "table", "reads", "orders", "latest")
    assert kv.json("kv", "table", "info", "orders")["reads"] == "latest"


def test_a_table_is_dropped_once_somebody_says_yes(
    kv: Commands, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv.run("kv", "table", "create", "t")
    keyboard, terminal = pty.openpty()
    with open(terminal, closefd=True) as typed, open(keyboard, "w"):
        monkeypatch.setattr("sys.stdin", typed)
        os.write(keyboard, b"no\n")
        assert kv.run("kv", "table", "drop", "t", status=1) == ""
        assert "t" in cluster.machine.topology.tables
        os.write(keyboard, b"yes\n")
        assert "its users are t" in kv.run("kv", "table", "drop", "t")
    assert cluster.machine.topology.tables == {}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--partitions=0", "0 partitions"),
        ("--replicas=9", "9 replicas"),
        ("--min-replicas=4", "min_replicas is 4"),
        ("--lag-max=many", "--lag-max 'many'"),
        ("--ack=soon", "ack"),
        ("--user=a b", "user name 'a b'"),
    ],
)
def test_a_table_that_cannot_be_is_refused(kv: Commands, option: str, text: str) -> None:
    kv.run("kv", "table", "create", "t", option, status=2, expect=text)


def test_a_table_needs_nodes(cluster: Cluster) -> None:
    assert not cluster.machine.topology.nodes
    kv = Commands()
    kv.run("kv", "table", "create", "t", status=1, expect="3 replicas need as many nodes")
    assert "there are no nodes" in kv_status(1)["problems"][0]


def test_users_come_get_new_passwords_and_go(kv: Commands, cluster: Cluster) -> None:
    kv.run("kv", "table", "create", "t")
    (added,) = kv.json("kv", "user", "add", "reader", "--table=t", "--read-only")
    kv.run("kv", "user", "add", "reader", "--table=t", status=1, expect="'reader' exists")
    kv.run("kv", "user", "add", "x", "--table=other", status=1, expect="no table 'other'")
    assert not cluster.machine.topology.users["reader"].may_write
    (changed,) = kv.json("kv", "user", "password", "reader")
    user = cluster.machine.topology.users["reader"]
    assert is_password(changed["password"].encode(), user.password_hash)
    assert not is_password(added["password"].encode(), user.password_hash)
    assert not user.may_write
    rows = kv.json("kv", "user", "list", "--table=t")
    assert [(row["user"], row["may"]) for row in rows] == [
        ("reader", "read"),
        ("t", "read and write"),
    ]
    assert not any("password" in row for row in rows)
    kv.run("kv", "user", "list", "--table=other", status=1, expect="no table 'other'")
    assert kv.json("kv", "user", "remove", "reader") == [{"user": "reader"}]
    kv.run("kv", "user", "remove", "reader", status=1, expect="no user 'reader'")
    kv.run("kv", "user", "password", "reader", status=1, expect="`raftwood kv user list`")


def test_a_login_is_told_as_a_section_and_as_variables(kv: Commands) -> None:
    section = kv.run("kv", "table", "create", "t", "--format=toml")
    client = tomllib.loads(section)["zeppelin_client"]
    assert (client["addresses"], client["user"]) == (["a:1", "b:1", "c:1"], "t")
    exports = kv.run("kv", "user", "password", "t", "--format=env").splitlines()
    assert exports[:2] == [
        "export RAFTWOOD_ZEPPELIN_CLIENT__ADDRESSES=a:1,b:1,c:1",
        "export RAFTWOOD_ZEPPELIN_CLIENT__USER=t",
    ]
    assert client["password"] not in exports[2]


def test_a_password_is_told_though_a_node_does_not_follow(
    kv: Commands,
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kv.run("kv", "table", "create", "t")
    cluster.silent.append(C)
    hasty = partialmethod(MetaClient.wait_applied, timeout_ms=50)
    monkeypatch.setattr(MetaClient, "wait_applied", hasty)
    assert run(["kv", "user", "add", "u", "--table=t", "--format=env"]) == 1
    told = capsys.readouterr()
    assert "nodes c have not applied epoch" in told.err
    password = told.out.split("PASSWORD=")[1].strip()
    kept = cluster.machine.topology.users["u"].password_hash
    assert is_password(password.encode(), kept)


def test_nodes_are_listed_and_removed_once_they_have_nothing(
    kv: Commands, cluster: Cluster
) -> None:
    kv.run("kv", "table", "create", "t", "--partitions=6")
    rows = kv.json("kv", "node", "list")
    assert [(row["node"], row["state"], row["masters"], row["replicas"]) for row in rows] == [
        (node, "up", 2, 6) for node in "abc"
    ]
    assert {row["heard_ms"] for row in rows} == {0}
    kv.run("kv", "node", "remove", "a", status=1, expect="is up")
    cluster.silent.append(A)
    cluster.change(NodeDown(A, 1))
    kv.run("kv", "node", "remove", "a", status=1, expect="has partition")
    kv.run("kv", "table", "drop", "t", "--yes")
    assert kv.json("kv", "node", "remove", "a") == [{"node": "a"}]
    assert [row["node"] for row in kv.json("kv", "node", "list")] == ["b", "c"]


def kv_status(status: int = 0) -> Any:
    with redirect_stdout(io.StringIO()) as output:
        assert run(["kv", "status", "--format=json"]) == status
    return json.loads(output.getvalue())


def test_the_status_says_first_what_is_wrong(kv: Commands, cluster: Cluster) -> None:
    kv.run("kv", "table", "create", "t", "--partitions=2", "--min-replicas=3")
    assert kv_status()["problems"] == []
    assert kv.run("kv", "status").startswith("nothing is wrong\n")
    cluster.lags = {A: 3 << 20, B: 5 << 20, C: 0}
    assert "5 MiB" in kv.run("kv", "status")

    cluster.silent.append(C)
    cluster.change(NodeDown(C, 1))
    few, down = kv_status(1)["problems"]
    assert "partitions 0, 1 of table t with fewer nodes up than its min_replicas, 3" in few
    assert "c (down)" in kv.run("kv", "table", "info", "t")
    assert down == "node c (c:1) is down, with replicas of 2 partitions: start it"

    topology = cluster.machine.topology
    epochs = [each.epoch for each in topology.tables["t"].partitions]
    cluster.silent.append(A)
    cluster.change(NodeDown(A, 1), ChangeMaster("t", 0, epochs[0], None))
    first = kv_status(1)["problems"][0]
    assert "partition 0 of table t without a master: start nodes a, c" in first
    assert "kv table master t PARTITION NODE --lose-writes" in first
    shown = kv_status(1)["tables"][0]["partition_list"][0]
    assert (shown["state"], shown["master"]) == ("no master", None)
    forced = kv.json("kv", "table", "master", "t", "0", "b", "--lose-writes")
    assert forced["partition_list"][0]["master"] == "b"
    kv.run("kv", "table", "master", "t", "7", "b", status=1, expect="no partition 7")


def test_slaves_that_are_behind_or_alone_are_told_of(kv: Commands, cluster: Cluster) -> None:
    kv.run("kv", "table", "create", "t", "--partitions=1")
    (partition,) = cluster.machine.topology.tables["t"].partitions
    cluster.change(MarkSlaves("t", 0, partition.epoch, (C,)))
    assert kv_status(1)["problems"] == [
        "node c has missed too much to become master of partition 0 of table t"
    ]
    assert "c (lagging, 0 B)" in kv.run("kv", "table", "info", "t")
    cluster.contact_ms = None
    assert "node b does not hear from the master of partition 0" in str(kv_status(1))


def test_many_numbers_are_named_in_part(kv: Commands, cluster: Cluster) -> None:
    kv.run("kv", "table", "create", "t", "--partitions=30", "--min-replicas=3")
    cluster.silent.append(C)
    cluster.change(NodeDown(C, 1))
    assert "8, 9 and 20 more of table t" in kv_status(1)["problems"][0]
