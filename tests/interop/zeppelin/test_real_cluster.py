"""Clients of others on nodes that are processes, with replication between them."""

from pathlib import Path

import pytest

from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.model import TableConfig, User
from tests.interop.zeppelin import redis_py
from tests.interop.zeppelin.redis_tools import Tools
from tests.zeppelin_kit.processes import KvProcesses, Login, kv_processes

pytestmark = pytest.mark.slow

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


@pytest.mark.needs("redis_clients")
def test_users_of_redis_py_get_what_they_get_from_redis(tmp_path: Path) -> None:
    with kv_processes(tmp_path) as cluster:
        login = cluster.create_table("orders", TABLE)
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


@pytest.mark.needs("redis_tools")
def test_the_tools_of_redis_find_all_well(tmp_path: Path) -> None:
    with kv_processes(tmp_path) as cluster:
        login = cluster.create_table("orders", TABLE)
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
