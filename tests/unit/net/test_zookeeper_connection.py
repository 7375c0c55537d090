"""Addresses of ZooKeeper, and what is said where no server answers at one."""

import subprocess
import sys

import pytest
from tests.kits.running import run

from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.disk.real_environment import real_environment
from raftwood.metastore.zookeeper_store import ZooKeeperMetaStore
from raftwood.net.zookeeper_connection import ZooKeeperAddress


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("one:2181", ZooKeeperAddress("one:2181", "/raftwood")),
        ("one:1,two.example:2/a/b-c", ZooKeeperAddress("one:1,two.example:2", "/a/b-c")),
        ("[::1]:2181/x", ZooKeeperAddress("[::1]:2181", "/x")),
    ],
)
def test_an_address_names_hosts_and_a_chroot(text: str, address: ZooKeeperAddress) -> None:
    assert ZooKeeperAddress.parse(text, chroot="/raftwood") == address


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:1,", "host:x", "h:1/", "h:1/a//b", "h:1/../b", "h:1/a/", ":1", "h:1h:2"],
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    async def main() -> None:
        with real_environment() as environment, pytest.raises(InvalidInput, match="HOST:PORT"):
            await ZooKeeperMetaStore.open(environment, text)

    run(main())


def test_a_server_that_is_away_is_named() -> None:
    async def main() -> None:
        with (
            real_environment() as environment,
            pytest.raises(Unavailable, match="no ZooKeeper server answered at "),
        ):
            await ZooKeeperMetaStore.open(environment, "127.0.0.1:1", timeout_ms=300)

    run(main())


WITHOUT_KAZOO = """
import sys
sys.modules["kazoo"] = None
from raftwood.cli.command_line import run
sys.exit(run(["meta", "status", "--zookeeper", "localhost:2181"]))
"""


def test_the_extra_is_named_where_it_is_missing() -> None:
    done = subprocess.run(
        (sys.executable, "-c", WITHOUT_KAZOO), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert (
        done.stderr
        == "error: --zookeeper needs kazoo: install it with pip install 'raftwood[zookeeper]'\n"
    )
