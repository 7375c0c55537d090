"""Reads of tables whose writes wait for other replicas: what was told stays, or nothing is told."""

import asyncio
import random

import msgspec

from raftwood.zeppelin.records import KEYS_MAX, LastWrites
from raftwood.zeppelin.replication.wire import ACK, AckResponse
from tests.kits.zeppelin.decoding import AnswerError
from tests.kits.zeppelin.node_cluster import TABLE, Cluster, scene

_NAMES = ("a", "b", "c")


def test_what_a_master_could_not_replicate_is_not_told_and_so_not_undone() -> None:
    async def body(cluster: Cluster) -> None:
        before = cluster.master.name
        assert await cluster.ask(before, "SET", "k", "old") == "OK"
        assert await cluster.ask(before, "SET", "other", "old") == "OK"
        _cut_off(cluster, before)
        # It was heard a moment ago, and has its lease for some tenths of a second.
        writer, _ = await cluster.connect(before)
        reader, _ = await cluster.connect(before)
        told: list[object] = []
        writing = asyncio.create_task(writer.ask(("SET", "k", "new")))
        await asyncio.sleep(0.05)
        assert await reader.ask(("GET", "other")) == [b"old"]
        reading = asyncio.create_task(reader.ask(("GET", "k")))
        await cluster.simulation.wait_until(lambda: writing.done() and reading.done(), timeout_s=30)
        told += [*writing.result(), *reading.result()]
        assert all(isinstance(answer, AnswerError) for answer in told), told
        cluster.nodes[before].break_down(loses_power=True)
        await cluster.simulation.wait_until(lambda: cluster.master_serves, timeout_s=30)
        assert await cluster.ask(cluster.master.name, "GET", "k") == b"old"

    scene(body, replicas=3, min_replicas=2, names=_NAMES)


def test_a_table_that_reads_the_latest_tells_it_at_once() -> None:
    async def body(cluster: Cluster) -> None:
        await _read_latest(cluster)
        before = cluster.master.name
        assert await cluster.ask(before, "SET", "k", "old") == "OK"
        _cut_off(cluster, before)
        writer, _ = await cluster.connect(before)
        writing = asyncio.create_task(writer.ask(("SET", "k", "new")))
        await asyncio.sleep(0.05)
        assert await cluster.ask(before, "GET", "k") == b"new"
        await cluster.simulation.wait_until(writing.done, timeout_s=30)

    scene(body, replicas=3, min_replicas=2, names=_NAMES)


def test_a_slave_tells_what_its_master_calls_done() -> None:
    async def body(cluster: Cluster) -> None:
        master = cluster.master.name
        fed, cut = (name for name in _NAMES if name != master)
        assert await cluster.ask(master, "SET", "k", "old") == "OK"
        _cut_off(cluster, cut)
        writer, _ = await cluster.connect(master)
        reader, _ = await cluster.connect(fed)
        assert await reader.ask(("READONLY",)) == ["OK"]
        assert await reader.ask(("GET", "k")) == [b"old"]
        writing = asyncio.create_task(writer.ask(("SET", "k", "new")))
        await asyncio.sleep(0.2)
        replica = cluster.nodes[fed].replica(cluster.partition)
        assert replica is not None
        assert replica.store.get(b"k", now_ms=0).data == b"new"  # type: ignore[union-attr]
        reading = asyncio.create_task(reader.ask(("GET", "k")))
        await asyncio.sleep(0.2)
        assert not reading.done()
        assert not writing.done()
        cluster.simulation.network.heal()
        await cluster.simulation.wait_until(lambda: writing.done() and reading.done(), timeout_s=30)
        assert (writing.result(), reading.result()) == (["OK"], [b"new"])

    scene(body, replicas=3, min_replicas=3, names=_NAMES)


def _cut_off(cluster: Cluster, name: str) -> None:
    cluster.simulation.network.partition([name], [each for each in _NAMES if each != name])


async def _read_latest(cluster: Cluster) -> None:
    client = cluster.meta.client
    await client.wait_applied(await client.set_reads(TABLE, "latest"))


def test_last_writes_are_never_too_early_and_exact_for_what_was_written_lately() -> None:
    source = random.Random(1)
    known, exact = LastWrites(0), dict[bytes, int]()
    floor = 0
    for sequence in range(1, 4 * KEYS_MAX):
        key = b"%d" % source.randrange(4 * KEYS_MAX)
        known.put([key], sequence)
        exact[key] = sequence
        asked = b"%d" % source.randrange(4 * KEYS_MAX)
        last = exact.get(asked, floor)
        assert last <= known.of(asked) <= sequence
        if last > sequence - KEYS_MAX:
            assert known.of(asked) == last
        if sequence == 3 * KEYS_MAX:  # everything is flushed, or replaced
            known.begin(sequence)
            floor, exact = sequence, {}
    assert known.of_all([b"never", key]) == sequence


def test_a_release_that_does_not_know_what_is_done_passes_over_it() -> None:
    told = ACK.encode(AckResponse([5, None], [], [7, 0]))
    assert msgspec.msgpack.decode(told, type=_AckResponseOfBefore).lags_bytes == [5, None]
    before = msgspec.msgpack.encode(_AckResponseOfBefore([5]))
    assert ACK.decode_response(before) == AckResponse([5])


class _AckResponseOfBefore(msgspec.Struct, frozen=True, array_like=True):
    """As 0.1.0 has it."""

    lags_bytes: list[int | None]
