"""Where the processes of `raftwood cluster up` are, and what is refused."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from raftwood.base.errors import InternalError, InvalidInput
from raftwood.clogs.receiver_settings import ClogsSettings
from raftwood.server.child_processes import ChildProcesses
from raftwood.server.local_cluster import LocalCluster, start_bookie


def test_each_process_has_a_port_of_its_own() -> None:
    cluster = LocalCluster("/f", stores=3, gateways=2, bookies=3, kv_nodes=2, port_base=7400)
    groups = (
        cluster.stores,
        cluster.gateways,
        cluster.http,
        cluster.bookies,
        cluster.kv_nodes,
        cluster.clogs,
    )
    ports = [int(address.rpartition(":")[2]) for group in groups for address in group.values()]
    assert ports == list(range(7400, 7414))
    assert "--set=clogs.listen=127.0.0.1:7413" in cluster.gateway_arguments(2, ClogsSettings())
    arguments = cluster.kv_arguments(2)
    assert arguments[:3] == ["kv", "node", "start"]
    assert "--set=zeppelin_node.listen=127.0.0.1:7411" in arguments
    assert "--set=zeppelin_node.data_folder=/f/kv-2" in arguments


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"stores": 0}, "0 stores and 1 gateways"),
        ({"gateways": 10}, "3 stores and 10 gateways"),
        ({"bookies": 10}, "10 bookies: give 0 to 9"),
        ({"kv_nodes": -1}, "-1 nodes of Zeppelin: give 0 to 9"),
        ({"port_base": 80}, "port base 80"),
        ({"port_base": 65_530, "kv_nodes": 9}, "port base 65530"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, int], text: str) -> None:
    whole = {"stores": 3, "gateways": 1, "port_base": 7400} | given
    with pytest.raises(InvalidInput, match=text):
        LocalCluster("/f", **whole)


def test_a_bookie_that_is_damaged_does_not_stop_the_others() -> None:
    class Children:
        started: tuple[str, ...] = ()
        problem = "it is damaged: start it with --begin-anew"

        async def start(self, name: str, _arguments: Sequence[str]) -> int:
            if name == "bookie-1":
                raise InternalError(f"{name} could not start: {self.problem}")
            self.started += (name,)
            return 1

    cluster = LocalCluster("/f", stores=1, gateways=1, bookies=2, kv_nodes=0, port_base=7400)
    children = Children()

    async def start() -> None:
        for number in cluster.bookies:
            await start_bookie(cast("ChildProcesses", children), cluster, number)

    asyncio.run(start())
    assert children.started == ("bookie-2",)
    children.problem = "its port is taken"
    with pytest.raises(InternalError, match="its port is taken"):
        asyncio.run(start())
