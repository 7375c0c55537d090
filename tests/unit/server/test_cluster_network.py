"""Which address a store tells others."""

from raftwood.base.configuration import compose
from raftwood.server.cluster import advertised_address, listen_address
from raftwood.server.settings import Settings


def settings(*flags: str) -> Settings:
    return compose(Settings, flags=flags).settings


def test_a_store_that_listens_on_all_addresses_tells_others_the_one_in_the_members() -> None:
    made = settings("cluster.members=1=one:7001", "node.listen=0.0.0.0:7001")
    assert listen_address(made) == "0.0.0.0:7001"
    assert advertised_address(made) == "one:7001"


def test_a_store_tells_others_the_address_that_it_is_given_for_that() -> None:
    members = "cluster.members=1=one:7001"
    assert advertised_address(settings(members, "node.advertise=outside:9001")) == "outside:9001"
    joining = settings(members, "node.store_id=4", "node.listen=four:7004")
    assert advertised_address(joining) == "four:7004"
