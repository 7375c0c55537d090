"""Appends under names travel together, and each has an answer of its own."""

import asyncio

import pytest

from raftwood.base.errors import ConnectionLost, Overloaded, SequenceForgotten
from raftwood.base.files import Buffer
from raftwood.logservice.client import append_pipeline
from raftwood.logservice.errors import RecordTooLarge
from raftwood.logservice.log_rules import WINDOW
from raftwood.logservice.wire import append_pieces
from tests.kits.logservice.log_cluster import LogCluster, run_log_cluster


def test_appends_of_one_turn_are_sent_together_and_answered_each_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []

    def counted(shard: int, entries: list[list[Buffer]], *, again: bool) -> list[Buffer]:
        counts.append(len(entries))
        return append_pieces(shard, entries, again=again)

    monkeypatch.setattr(append_pipeline, "append_pieces", counted)

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            await client.append_once(b"", producer="old", sequence=WINDOW + 7)
            counts.clear()
            results = await asyncio.gather(
                client.append_once(b"a", producer="p", sequence=1),
                client.append_once(b"too old", producer="old", sequence=1),
                client.append_once(b"x" * (16 << 10), producer="p", sequence=2),
                client.append_once(b"x" * (17 << 10), producer="p", sequence=3),
                client.append_once(b"a", producer="p", sequence=1),
                return_exceptions=True,
            )
            assert counts == [4]  # one was refused before it was sent
            assert isinstance(results[1], SequenceForgotten)
            assert isinstance(results[3], RecordTooLarge)
            assert results[0] == results[4]
            assert isinstance(results[2], int)
            counts.clear()
            await asyncio.gather(
                *(
                    client.append_once(b"x" * (16 << 10), producer="many", sequence=number)
                    for number in range(40)
                )
            )
            assert sum(counts) == 40
            assert max(counts) <= append_pipeline.SINGLES_BYTES_MAX // (16 << 10)

    run_log_cluster(scenario)


def test_a_record_that_the_store_refuses_takes_no_others_along() -> None:
    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            # As where the stores' limit was lowered after the client has asked for it.
            client._singles._record_bytes_max = 1 << 20
            results = await asyncio.gather(
                client.append_once(b"one", producer="p", sequence=1),
                client.append_once(b"x" * (20 << 10), producer="p", sequence=2),
                client.append_once(b"three", producer="p", sequence=3),
                return_exceptions=True,
            )
            assert isinstance(results[1], RecordTooLarge)
            records, _ = await client.read(1)
            assert [bytes(each.payload) for each in records] == [b"one", b"three"]

    run_log_cluster(scenario)


def test_what_waits_is_bounded_and_ends_with_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_pipeline, "WAITING_BYTES_MAX", 1_000)

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        client = await cluster.client()
        for machine in cluster.machines.values():
            machine.power_off()
        first = asyncio.ensure_future(client.append_once(b"x" * 1_000, producer="p", sequence=1))
        await asyncio.sleep(0.5)
        with pytest.raises(Overloaded):
            await client.append_once(b"", producer="p", sequence=2)
        await client.close()
        with pytest.raises(ConnectionLost):
            await first
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)

    run_log_cluster(scenario)
