"""Single requests to real stores: records at the limits, and shards that are elsewhere."""

from pathlib import Path

import pytest

from raftwood.base.errors import NotLeader
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import RecordTooLarge, ShardNotFound
from raftwood.logservice.records import RECORD_BYTES_MAX, UpdateKind, encode_user_entry
from raftwood.logservice.wire import (
    APPEND,
    INFO,
    READ,
    UPDATE,
    ReadRequest,
    ShardRequest,
    UpdateRequest,
    decode_lsns,
    decode_records,
    encode_append,
    encode_read_request,
)
from raftwood.net.stores import Stores
from tests.kits.logservice.processes import LogProcesses, log_stores, shard_of
from tests.kits.running import run

_TIMEOUT_MS = 20_000
_LARGEST = RECORD_BYTES_MAX
LARGE = {
    "raft.message_bytes_max": 1 << 20,
    "raft.in_flight_bytes_max": 16 << 20,
    "log.segment_bytes": 64 << 20,
    "logservice.record_bytes_max": _LARGEST,
}
"""A record may be several times as large as a message between stores."""


def test_a_record_above_the_limit_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with log_stores(tmp_path, settings=LARGE) as stores:
            await stores.start()
            client = await stores.client()
            largest = (bytes(range(256)) * (_LARGEST // 256 + 1))[:_LARGEST]
            lsns = await client.append_many([b"small", largest, b"small"])
            with pytest.raises(RecordTooLarge, match=f"{_LARGEST + 1} bytes is above"):
                await client.append(largest + b"x")
            await check_server_refuses(stores, largest + b"x")
            lsns.append(await client.append(b"the last"))
            found = []
            first = lsns[0]
            while first <= lsns[-1]:
                records, first = await client.read(first, bytes_max=100)
                found += records
            assert [record.lsn for record in found] == lsns
            assert [record.payload for record in found] == [
                b"small",
                largest,
                b"small",
                b"the last",
            ]
            await stores.kill(*stores.first)
            await stores.start()
            records, _ = await client.read(lsns[1], bytes_max=100)
            assert [record.payload for record in records] == [largest]

    run(body())


async def check_server_refuses(stores: LogProcesses, payload: bytes) -> None:
    """Also a client that does not look at the limit itself."""
    entry = encode_user_entry(payload, holder=0, producer=bytes(range(16)), sequence=1)
    channel = await stores.stores.connected(await stores.leader(), _TIMEOUT_MS)
    for _ in range(3):
        with pytest.raises(RecordTooLarge, match="record_bytes_max on all stores"):
            await channel.call(APPEND, encode_append(1, [entry]), _TIMEOUT_MS)
    answer = await channel.ask(INFO, ShardRequest(1, forward=True), _TIMEOUT_MS)
    assert answer.shard == 1


def test_a_record_limit_that_the_log_cannot_hold_is_refused_at_the_start(tmp_path: Path) -> None:
    async def body() -> None:
        settings = {"logservice.record_bytes_max": 1 << 20, "log.segment_bytes": 1 << 20}
        async with log_stores(tmp_path, first=1, settings=settings) as stores:
            stores.launch(1)
            assert await stores.nodes[1].ended() != 0
            told = stores.nodes[1].log.read_text()
            assert "logservice.record_bytes_max" in told
            assert "Traceback" not in told
            stores.nodes[1].log.unlink()

    run(body())


def test_a_shard_is_reached_through_a_store_that_does_not_have_it(tmp_path: Path) -> None:
    async def body() -> None:
        settings = {"hakeeper.log_replicas": 1}
        async with log_stores(tmp_path, settings=settings) as stores:
            await stores.start()
            view = await stores.runs()
            home = shard_of(view, 1).leader
            elsewhere = stores.others(home)[0]
            client = await stores.client(stores=[elsewhere])
            lsn = await client.append(b"from elsewhere")
            by_name = await stores.client("log-1", stores=[elsewhere])
            assert by_name.config.shard == 1
            await check_forwarding(stores.stores, elsewhere, home, lsn)
            with pytest.raises(ShardNotFound, match="there is no shard"):
                await stores.client(999, stores=[elsewhere])
            await check_follows(stores, by_name, home)

    run(body())


async def check_forwarding(stores: Stores, asked: int, home: int, lsn: int) -> None:
    """A store asks the leader for a client that wants it so, and else tells who leads."""
    channel = await stores.connected(asked, _TIMEOUT_MS)
    entry = encode_user_entry(b"forwarded", holder=0, producer=bytes(range(16)), sequence=1)
    answer = await channel.call(APPEND, encode_append(1, [entry], forward=True), _TIMEOUT_MS)
    (after,) = decode_lsns(answer, 1)
    assert isinstance(after, int)
    assert after > lsn
    request = encode_read_request(ReadRequest(1, lsn, 1000, forward=True))
    records, _ = decode_records(await channel.call(READ, request, _TIMEOUT_MS))
    assert [record.payload for record in records] == [b"from elsewhere", b"forwarded"]
    update = UpdateRequest(1, UpdateKind.TSO, 5, forward=True)
    assert await channel.ask(UPDATE, update, _TIMEOUT_MS) == 1
    assert (await channel.ask(INFO, ShardRequest(1, forward=True), _TIMEOUT_MS)).leader == home
    with pytest.raises(NotLeader) as told:
        await channel.ask(INFO, ShardRequest(1), _TIMEOUT_MS)
    assert told.value.leader == home


async def check_follows(stores: LogProcesses, client: AsyncLogClient, home: int) -> None:
    """The store that has it restarts: the client finds it again."""
    await stores.kill(home)
    await stores.start(home)
    await client.append(b"after a restart")
