"""Clients of others on nodes that are processes, with replication between them."""

from pathlib import Path

import pytest

from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import TableConfig, User
from tests.kits.zeppelin import redis_py
from tests.kits.zeppelin.processes import KvProcesses, Login, kv_processes
from tests.kits.zeppelin.redis_tools import Tools

pytestmark = pytest.mark.needs("redis_clients", "redis_tools")

PATIENT = {"zeppelin_meta.lease_ms": 8_000, "zeppelin_meta.down_ms": 12_000}
"""Nobody is down here, however busy the machine is."""
TABLE = TableConfig(partitions=8, replicas=3)


def add_reader(cluster: KvProcesses, login: Login) -> str:
    async def add(meta: MetaClient) -> None:
        writer = (await meta.topology()).users[login.user]
        hashed = writer.password_hash
        epoch = await meta.add_user(
            User(name="reader", table=login.table, password_hash=hashed, may_write=False)
        )
        await meta.wait_applied(epoch)

    cluster.ask(add)
    return "reader"


def use_redis_py(cluster: KvProcesses, login: Login) -> None:
    given = {
        "host": "127.0.0.1",
        "port": cluster.ports["node-1"][0],
        "user": login.user,
        "password": login.password,
        "reader": add_reader(cluster, login),
        "nodes": 3,
    }
    for version in redis_py.VERSIONS:
        for protocol in (2, 3):
            said = redis_py.run(version, "redis_py_program", {**given, "protocol": protocol})
            assert said["version"] == redis_py.VERSIONS[version].removeprefix("redis==")
            assert not said["failures"], "\n".join(said["failures"].values())
            assert not said["untried"], "commands that no scenario sends"


def use_tools(cluster: KvProcesses, login: Login) -> None:
    tools = Tools(cluster.ports["node-2"][0], login.user, login.password)
    for threads in ("1", "2"):
        done = tools.benchmark(
            *("--cluster", "-t", "set,get,incr,mset", "-n", "2000", "-c", "20", "-P", "16"),
            *("-r", "1000", "-d", "100", "--threads", threads),
        )
        assert done.keys() == {"SET", "GET", "INCR", "MSET (10 keys)"}
    checked = tools.cluster("check")
    assert "[OK] All nodes agree about slots configuration." in checked
    assert "[OK] All 16384 slots covered." in checked


def test_users_of_redis_get_from_zeppelin_what_they_are_used_to(tmp_path: Path) -> None:
    with kv_processes(tmp_path, settings=PATIENT) as cluster:
        login = cluster.create_table("orders", TABLE)
        use_redis_py(cluster, login)
        use_tools(cluster, login)
