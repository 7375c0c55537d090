"""A node whose log is damaged: its message names commands that bring all of its copies back."""

import json
import time
from pathlib import Path

from raftwood.zeppelin.model import TableConfig
from tests.kits.zeppelin.processes import kv_processes

_TABLE = "orders"
_KEYS = 50
_WAIT_S_MAX = 60.0


def test_a_node_without_its_log_is_replaced_by_the_commands_that_it_names(tmp_path: Path) -> None:
    with kv_processes(tmp_path) as cluster:
        config = TableConfig(partitions=2, replicas=3, ack="synced", min_replicas=2)
        login = cluster.create_table(_TABLE, config)
        with cluster.redis(login) as client:
            for number in range(_KEYS):
                client.set(f"key{number}", f"value {number}")
        node = cluster.nodes[3]
        old = node.id
        assert node.stop() == 0
        for segment in (node.folder / "log").glob("*.segment"):
            segment.unlink()
        node.begin()
        assert node.wait() != 0
        told = node.tail()
        assert "start it with an empty zeppelin_node.data_folder" in told
        assert "raftwood kv cluster replace-node OLD NEW" in told
        assert "raftwood kv node list" in told

        node.folder.rename(tmp_path / "set-aside")
        node.start()
        new = node.id
        rows = json.loads(cluster.run("kv", "node", "list", "--format=json"))
        assert {old, new} <= {row["node"] for row in rows}
        cluster.run("kv", "cluster", "replace-node", old, new)
        deadline = time.monotonic() + _WAIT_S_MAX
        while len(cluster.status(3).copies) < config.partitions:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        cluster.wait_equal(_TABLE)
        assert node.is_running
        with cluster.redis(login) as client:
            found = [client.get(f"key{number}") for number in range(_KEYS)]
        assert found == [f"value {number}".encode() for number in range(_KEYS)]
