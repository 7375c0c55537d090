"""`raftwood meta` on a server of ZooKeeper."""

import json

import pytest

from raftwood.cli.command_line import run as raftwood
from tests.kits.servers.zookeeper import ZooKeeperServer


@pytest.mark.needs("zookeeper")
def test_a_metastore_in_zookeeper_from_the_command_line(
    zookeeper: ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def meta(*arguments: str) -> str:
        assert raftwood(["meta", *arguments, "--zookeeper", f"{zookeeper.address}/cli"]) == 0
        return capsys.readouterr().out

    assert meta("put", "a/x", "one").split() == ["version", "1"]
    assert meta("watch", "a/", "--count", "1") == "1  a/x  one\n"
    shown = json.loads(meta("list", "--format", "json"))
    assert shown == [{"key": "a/x", "value": "one", "version": 1}]
