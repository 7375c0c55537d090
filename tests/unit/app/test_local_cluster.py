"""Where the processes of `raftwood cluster up` are, and what is refused."""

import pytest

from raftwood.app.local_cluster import LocalCluster
from raftwood.base.errors import InvalidInput


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
    assert "--set=clogs.listen=127.0.0.1:7413" in cluster.gateway_arguments(2)
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
