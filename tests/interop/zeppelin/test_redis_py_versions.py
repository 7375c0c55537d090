"""redis-py as it comes, of versions that are in use, in both versions of the protocol."""

import pytest

from tests.interop.zeppelin import redis_py
from tests.zeppelin_kit.data_node import data_nodes
from tests.zeppelin_kit.static_view import PASSWORD, READER, WRITER


@pytest.mark.slow
@pytest.mark.needs("redis_clients")
@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
@pytest.mark.parametrize("version", redis_py.VERSIONS)
def test_users_get_what_they_get_from_redis(version: str, protocol: int) -> None:
    with data_nodes(3) as nodes:
        given = {
            "host": "127.0.0.1",
            "port": nodes[0].port,
            "user": WRITER,
            "password": PASSWORD,
            "reader": READER,
            "protocol": protocol,
            "nodes": len(nodes),
        }
        said = redis_py.run(version, "redis_py_program", given)
    assert said["version"] == redis_py.VERSIONS[version].removeprefix("redis==")
    assert not said["failures"], "\n".join(said["failures"].values())
    assert not said["untried"], "commands that no scenario sends"
