"""A partition goes from one node to another while clients use it, in virtual time."""

import asyncio
import itertools
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from raftwood.net.connection import FramedConnection
from raftwood.zeppelin.meta.changes import Migrate
from raftwood.zeppelin.model import NodeId, PartitionState
from raftwood.zeppelin.replication.master import HELD_MS_MAX
from raftwood.zeppelin.replication.sender import SenderRules
from raftwood.zeppelin.slots import slot_of
from tests.kits.models import Mutant, replaced, together
from tests.kits.zeppelin.decoding import AnswerError
from tests.kits.zeppelin.node_cluster import TABLE, Cluster, scene
from tests.kits.zeppelin.simulation import meta
from tests.kits.zeppelin.simulation.node import DATA_PORT

ABORTED = "EXECABORT Transaction discarded because of previous errors."


def id_of(cluster: Cluster, name: str) -> NodeId:
    server = cluster.nodes[name].server
    assert server is not None
    return server.id


async def moved(cluster: Cluster, source: str, target: str) -> None:
    await cluster.meta.client.apply(
        Migrate(TABLE, 0, id_of(cluster, source), id_of(cluster, target))
    )
    partition = cluster.partition
    await cluster.simulation.wait_until(
        lambda: cluster.nodes[source].replica(partition) is None, timeout_s=30
    )


async def counting(
    cluster: Cluster, name: str, answers: list[tuple[str, Any]], is_over: asyncio.Event
) -> None:
    """Ask one node again and again, wherever it sends."""
    connection, _ = await cluster.connect(name)
    while not is_over.is_set():
        for words in (("INCR", "n"), ("GET", "n"), ("BULK", "GET", "n", "m"), ("DBSIZE",)):
            (answer,) = await connection.ask(words)
            answers.append((words[0], answer))
        _, queued, answer = await connection.ask(("MULTI",), ("INCR", "n"), ("EXEC",))
        answers += [("QUEUED", queued), ("EXEC", answer)]
        await asyncio.sleep(0.005)


def test_whoever_asks_the_old_node_is_answered_or_sent_on_and_never_refused() -> None:
    async def body(cluster: Cluster) -> None:
        source = cluster.master.name
        target = "b" if source == "a" else "a"
        answers: dict[str, list[tuple[str, Any]]] = {source: [], target: []}
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for name, told in answers.items():
                group.create_task(counting(cluster, name, told, is_over))
            await asyncio.sleep(0.5)
            await moved(cluster, source, target)
            await asyncio.sleep(0.5)
            is_over.set()
        for name, told in answers.items():
            other = target if name == source else source
            refusals = {each for _, each in told if isinstance(each, AnswerError)}
            sent_on = f"MOVED {slot_of(b'n')} {other}:{DATA_PORT}"
            assert sent_on in refusals
            assert refusals <= {sent_on, ABORTED}
        done = [
            what
            for told in answers.values()
            for what, answer in told
            if what in ("INCR", "EXEC") and not isinstance(answer, AnswerError)
        ]
        count = await cluster.ask(target, "GET", "n")
        assert count == b"%d" % len(done), "each that was answered counts, once"
        server = cluster.nodes[source].server
        assert server is not None
        assert 0 < server.admin.status().parked.longest_ms < 500

    scene(body, replicas=1)


def test_a_node_that_gets_a_partition_again_has_nothing_of_the_time_before() -> None:
    async def body(cluster: Cluster) -> None:
        first = cluster.master.name
        other = "b" if first == "a" else "a"
        for key in ("stays", "goes"):
            assert await cluster.ask(first, "SET", key, "old") == "OK"
        await moved(cluster, first, other)
        assert await cluster.ask(other, "DEL", "goes") == 1
        assert await cluster.ask(other, "SET", "stays", "new") == "OK"
        await moved(cluster, other, first)
        assert await cluster.ask(first, "GET", "goes") is None
        assert await cluster.ask(first, "GET", "stays") == b"new"
        assert await cluster.ask(first, "DBSIZE") == 1
        assert await cluster.ask(other, "DBSIZE") == 0

    scene(body, replicas=1)


def far_move(delay_s: float, *, writers: int = 2) -> None:
    """Records and acks are so long on their way; the link between the two nodes holds 256 KiB, and
    writers would write more than it carries.
    """
    slow = replace(meta.SETTINGS, handover_close_bytes=100_000, catch_up_look_ms=500)

    async def body(cluster: Cluster) -> None:
        source = cluster.master.name
        target = "b" if source == "a" else "a"
        network, states = cluster.simulation.network, list[PartitionState]()
        delay = network.delay

        def far(one: Any, other: Any) -> float:
            return delay_s if {one.name, other.name} == {source, target} else delay(one, other)

        taken: list[tuple[PartitionState, Any, float]] = []
        is_over = asyncio.Event()

        async def watch() -> None:
            while not is_over.is_set():
                states.append(cluster.state)
                await asyncio.sleep(0.1)

        async def write(number: int) -> None:
            connection, _ = await cluster.connect(source)
            began = cluster.simulation.now
            for turn in itertools.count():
                state, value = cluster.state, f"{turn} {'x' * 10_000}"
                (answer,) = await connection.ask(("SET", f"k{number}-{turn % 50}", value))
                waited_s, began = cluster.simulation.now - began, cluster.simulation.now
                taken.append((state, answer, waited_s))
                if answer != "OK":
                    last[number] = turn - 1
                    break
                await asyncio.sleep(0.005)

        last: dict[int, int] = {}
        with mock.patch.object(network, "delay", far):
            async with asyncio.TaskGroup() as group:
                group.create_task(watch())
                for number in range(writers):
                    group.create_task(write(number))
                await moved(cluster, source, target)
                is_over.set()
        assert PartitionState.SLOWDOWN in states
        # Slower, and none is refused: after the hand-over they are sent on.
        others = [str(answer) for _, answer, _ in taken if answer != "OK"]
        assert len(others) == writers
        assert all(each.startswith("MOVED") for each in others)
        slowed = [waited_s for state, _, waited_s in taken if state is PartitionState.SLOWDOWN]
        assert max(slowed) <= HELD_MS_MAX / 1_000 + 0.2
        slowed_s = 0.1 * states.count(PartitionState.SLOWDOWN)
        assert len(slowed) >= 10 * slowed_s, "and they go on"
        for number, turn in last.items():
            value = await cluster.ask(target, "GET", f"k{number}-{turn % 50}")
            assert value.split()[0] == b"%d" % turn, "what was answered is there"

    with mock.patch.object(meta, "SETTINGS", slow):
        scene(body, replicas=1)


@pytest.mark.parametrize("delay_s", [0.06, 0.15], ids=["120 ms", "300 ms"])
def test_writers_are_slowed_down_for_a_target_that_does_not_come_closer(delay_s: float) -> None:
    far_move(delay_s)


def test_a_client_that_waits_for_no_answer_is_held_back_too() -> None:
    async def body(cluster: Cluster) -> None:
        replica = cluster.master.replica(cluster.partition)
        assert replica is not None
        leading = replica.leading
        assert leading is not None
        connection, _ = await cluster.connect(cluster.master.name)
        with mock.patch.object(leading, "tell"):
            leading.acks.is_immediate, leading.acks.is_paced = False, True
            writes = [("SET", f"k{number}", "x" * 10_000) for number in range(1_000)]
            asking = asyncio.create_task(connection.ask(*writes))
            await asyncio.sleep(1)
            assert 0 < await cluster.ask(cluster.master.name, "DBSIZE") < 100
        # Without others that write, it goes on with each answer.
        leading.tell()
        assert await asking == ["OK"] * len(writes)
        assert await cluster.ask(cluster.master.name, "DBSIZE") == len(writes)

    scene(body, replicas=1)


def test_a_link_that_is_taken_for_dead_is_found() -> None:
    """As it was taken where a PING had to wait for records behind which it was sent."""

    def run(_: int) -> None:
        try:
            far_move(0.15)
        except ExceptionGroup as group:
            raise group.exceptions[0] from group

    links = replaced(FramedConnection, _see_taken=lambda _self, _now: None)
    windows = replaced(SenderRules, flight_bytes=32 << 20)
    Mutant(run, together(links, windows), harm="not true within").catch(seeds_max=1)
