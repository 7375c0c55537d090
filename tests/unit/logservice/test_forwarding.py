"""Requests to stores that do not lead a shard: forwarded once where that was asked, never again."""

import asyncio
from typing import Any
from unittest import mock

import pytest

from raftwood.base.errors import NotLeader
from raftwood.logservice.records import UpdateKind, encode_user_entry
from raftwood.logservice.server.forwarder import Forwarder
from raftwood.logservice.wire import (
    APPEND,
    INFO,
    READ,
    UPDATE,
    Location,
    ReadRequest,
    ShardRequest,
    UpdateRequest,
    decode_lsns,
    decode_records,
    encode_append,
    encode_read_request,
)
from raftwood.net import Channel
from raftwood.net.stores import Stores
from tests.kits.logservice.log_cluster import CLIENT, LogCluster, address, run_log_cluster

TIMEOUT_MS = 5_000
ENTRY = encode_user_entry(b"forwarded", holder=0)


async def channel_to(cluster: LogCluster, stores: Stores, *, is_leader: bool) -> Channel:
    leader = await cluster.wait_for_leader(1)
    store = leader if is_leader else next(each for each in cluster.stores if each != leader)
    return await stores.connected(store, TIMEOUT_MS)


def test_a_follower_forwards_where_it_is_asked_to_and_else_names_the_leader() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        stores = Stores(cluster.environment, CLIENT, {each: address(each) for each in (1, 2, 3)})
        channel = await channel_to(cluster, stores, is_leader=False)
        with pytest.raises(NotLeader) as refusal:
            await channel.call(APPEND, encode_append(1, [ENTRY]), TIMEOUT_MS)
        assert refusal.value.leader == cluster.leader(1)
        answer = await channel.call(APPEND, encode_append(1, [ENTRY], forward=True), TIMEOUT_MS)
        (lsn,) = decode_lsns(answer, 1)
        assert isinstance(lsn, int)
        request = encode_read_request(ReadRequest(1, lsn, 1000, forward=True))
        records, _ = decode_records(await channel.call(READ, request, TIMEOUT_MS))
        assert [bytes(record.payload) for record in records] == [b"forwarded"]
        update = UpdateRequest(1, UpdateKind.TRUNCATE, lsn, forward=True)
        assert await channel.ask(UPDATE, update, TIMEOUT_MS) == lsn
        info = await channel.ask(INFO, ShardRequest(1, forward=True), TIMEOUT_MS)
        assert info.leader == cluster.leader(1)
        await stores.close()

    run_log_cluster(scenario)


def test_stores_that_take_one_another_for_the_leader_do_not_forward_in_circles() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        stores = Stores(cluster.environment, CLIENT, {each: address(each) for each in (1, 2, 3)})
        leader = await cluster.wait_for_leader(1)
        others = [each for each in (1, 2, 3) if each != leader]
        forwarded: list[int] = []
        original = Forwarder.ask_leader

        async def locate(forwarder: Forwarder, shard: int | str) -> Location:
            assert isinstance(shard, int)
            other = others[0] if forwarder._host.id == others[1] else others[1]
            return Location(shard, other, {other: address(other)})

        async def ask_leader(forwarder: Forwarder, shard: int, *rest: Any) -> bytes:
            forwarded.append(forwarder._host.id)
            return await original(forwarder, shard, *rest)

        channel = await stores.connected(others[0], TIMEOUT_MS)
        with (
            mock.patch.object(Forwarder, "locate", locate),
            mock.patch.object(Forwarder, "ask_leader", ask_leader),
        ):
            requests = [
                channel.call(APPEND, encode_append(1, [ENTRY], forward=True), TIMEOUT_MS),
                channel.ask(UPDATE, UpdateRequest(1, UpdateKind.TSO, 1, forward=True), TIMEOUT_MS),
                channel.ask(INFO, ShardRequest(1, forward=True), TIMEOUT_MS),
            ]
            answers = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(each) for each in answers] == [NotLeader] * 3
        assert forwarded == [others[0]] * 3
        await stores.close()

    run_log_cluster(scenario)
