"""Requests for a partition that is handed over: they wait, then are sent on or executed."""

import asyncio

import pytest
from msgspec.structs import replace

from raftwood.zeppelin.commands import dispatch, keys
from raftwood.zeppelin.commands import session as session_module
from raftwood.zeppelin.commands.command import RedisError
from raftwood.zeppelin.commands.session import KvSession, ParkedRequests
from raftwood.zeppelin.model import NodeId, PartitionState
from raftwood.zeppelin.slots import slot_of
from tests.kits.running import run
from tests.kits.zeppelin.data_client import connected, key_of, two_nodes
from tests.kits.zeppelin.static_view import single_node


def test_a_frozen_partition_is_neither_read_nor_written_before_the_hand_over_is_over() -> None:
    view = two_nodes(PartitionState.STUCK)
    copy, key = view.copy(0), key_of(0)
    copy.is_serving = False

    async def main() -> None:
        async with connected(view) as client:
            # Another may be master by now, and have another value: this node hears of it later.
            client.send(f"GET {key}", f"SET {key} 1", f"GET {key}", f"MGET {key} {key}")
            assert await client.is_silent()
            copy.is_serving = True
            assert await client.answers(4) == [None, "OK", b"1", [b"1", b"1"]]
            copy.is_serving = False
            for words in (f"WATCH {key}", "DBSIZE", "KEYS *", "SCAN 0", "RANDOMKEY"):
                client.send(words)
                assert await client.is_silent()
                copy.is_serving = True
                await client.answers(1)
                copy.is_serving = False

    run(main())


def test_parked_writes_are_sent_to_the_new_master_as_soon_as_it_is_that() -> None:
    view = two_nodes(PartitionState.STUCK)
    copy, key = view.copy(0), key_of(0)
    copy.is_serving = False

    async def main() -> None:
        async with connected(view) as client:
            client.send(f"SET {key} 1", f"GET {key}")
            assert await client.is_silent()
            # For a moment nobody is master: the write stays where it is.
            copy.is_leading = False
            assert await client.is_silent()
            view.topology = two_nodes(is_handed_over=True).topology
            moved = f"MOVED {slot_of(key.encode())} 127.0.0.1:7002"
            assert await client.answers(2, within_s=0.5) == [moved, moved]

    run(main())


def test_a_transaction_that_is_sent_elsewhere_is_over_here() -> None:
    view = two_nodes(PartitionState.STUCK)
    copy, key = view.copy(0), key_of(0)

    async def main() -> None:
        async with connected(view) as client:
            assert await client("MULTI", f"SET {key} 1") == ["OK", "QUEUED"]
            copy.is_serving = False
            client.send("EXEC")
            assert await client.is_silent()
            copy.is_leading = False
            view.topology = two_nodes(is_handed_over=True).topology
            moved = f"MOVED {slot_of(key.encode())} 127.0.0.1:7002"
            assert await client.answers(1) == [moved]
            assert await client("MULTI", "EXEC") == ["OK", []]
            copy.is_leading = copy.is_serving = True
            assert await client("MULTI", f"SET {key} 1") == ["OK", "QUEUED"]
            copy.is_leading = copy.is_serving = False
            assert await client("EXEC", "MULTI") == [moved, "OK"]

    run(main())


def test_parked_writes_are_told_to_try_again_where_nobody_becomes_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "FROZEN_S_MAX", 0.2)
    view = two_nodes(PartitionState.STUCK)
    copy, key = view.copy(0), key_of(0)
    copy.is_serving = False

    async def main() -> None:
        async with connected(view) as client:
            tryagain = "TRYAGAIN the partition is being handed over to another node"
            assert await client(f"SET {key} 1") == [tryagain]
            client.send(f"SET {key} 1")
            assert await client.is_silent()
            copy.is_leading = False
            assert await client.answers(1) == [tryagain]
            assert await client(f"SET {key} 1") == ["CLUSTERDOWN The cluster is down"]

    run(main())


def test_all_keys_are_deleted_once_the_hand_over_of_some_is_over() -> None:
    view = single_node(partitions=2)

    async def main() -> None:
        async with connected(view) as client:
            await client(*(f"SET key{number} 1" for number in range(20)))
            view.copy(1).is_serving = False
            client.send("FLUSHDB")
            assert await client.is_silent()
            assert await client.is_silent()
            view.copy(1).is_serving = True
            assert await client.answers(1) == ["OK"]
            assert await client("DBSIZE") == [0]

    run(main())


@pytest.mark.parametrize("version", [2, 3])
def test_whatever_a_client_sends_waits_and_is_sent_on_in_its_order(version: int) -> None:
    view = two_nodes(PartitionState.STUCK)
    copy, key = view.copy(0), key_of(0)
    other = f"{{{key}}}2"

    async def main() -> None:
        async with connected(view) as client:
            await client(f"HELLO {version}")
            copy.is_serving = False
            commands = [
                f"GET {key}",
                f"SET {key} 1 PX 1000",
                f"INCRBY {key} 5",
                f"MSET {key} 1 {other} 2",
                f"MGET {key} {other}",
                f"DEL {key} {other}",
                f"BULK SET {key} 1 0 {other} 2 0",
                f"BULK INCR {key} 1 0",
                f"BULK GET {key} {other}",
                f"BULK DEL {key}",
                f"WATCH {key}",
            ]
            client.send(*commands, "PING")
            assert await client.is_silent()
            copy.is_leading = False
            view.topology = two_nodes(is_handed_over=True).topology
            moved = f"MOVED {slot_of(key.encode())} 127.0.0.1:7002"
            answers = await client.answers(len(commands) + 1)
            assert answers == [moved] * len(commands) + ["PONG"]
            assert view.copy(0).store.last_sequence == 0

    run(main())


def test_a_transaction_begun_amid_a_hand_over_is_executed_where_that_is_given_up() -> None:
    view = two_nodes(PartitionState.STUCK)
    copy, key = view.copy(0), key_of(0)
    copy.is_serving = False

    async def main() -> None:
        async with connected(view) as client:
            client.send("MULTI", f"INCR {key}", f"INCR {key}", "EXEC")
            assert await client.answers(1) == ["OK"]
            assert await client.is_silent()
            copy.is_serving = True
            assert await client.answers(3) == ["QUEUED", "QUEUED", [1, 2]]

    run(main())


def test_a_client_that_comes_to_the_next_master_too_early_waits_there() -> None:
    """The one before has heard already that the hand-over is over, and has sent it here."""
    view = two_nodes()
    key = key_of(1)
    copy = view.copy(1)
    active = view.topology
    partitions = list(active.tables["orders"].partitions)
    partitions[1] = replace(partitions[1], state=PartitionState.STUCK, target=NodeId("a"))
    table = replace(active.tables["orders"], partitions=tuple(partitions))
    view.topology = replace(active, tables={"orders": table})

    async def main() -> None:
        async with connected(view) as client:
            client.send(f"SET {key} 1", f"GET {key}")
            assert await client.is_silent()
            copy.is_leading = copy.is_serving = True
            assert await client.answers(2) == ["OK", b"1"]

    run(main())


def test_who_has_a_lease_and_does_not_lead_yet_lets_clients_wait() -> None:
    view = two_nodes()
    copy, key = view.copy(0), key_of(0)
    copy.is_leading = copy.is_serving = False
    view.has_lease = True

    async def main() -> None:
        async with connected(view) as client:
            client.send(f"SET {key} 1", "DBSIZE")
            assert await client.is_silent()
            copy.is_leading = copy.is_serving = True
            assert await client.answers(2) == ["OK", 1]
            copy.is_leading = copy.is_serving = view.has_lease = False
            down = "CLUSTERDOWN The cluster is down"
            assert await client(f"SET {key} 1", "DBSIZE") == [down, down]

    run(main())


def test_keys_that_are_gathered_when_a_hand_over_begins_are_gathered_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keys, "SLICE_KEYS", 2)
    view = single_node(partitions=2)

    async def main() -> None:
        async with connected(view) as client:
            await client(*(f"SET key{number} 1" for number in range(20)))
            begin_turn, turns = KvSession.begin_turn, []

            def freeze(session: KvSession) -> None:
                turns.append(1)
                if len(turns) == 4:
                    view.copy(1).is_serving = False
                begin_turn(session)

            monkeypatch.setattr(KvSession, "begin_turn", freeze)
            client.send("KEYS *")
            assert await client.is_silent()
            assert len(turns) > 4
            view.copy(1).is_serving = True
            assert len((await client.answers(1))[0]) == 20

    run(main())


def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "PARKED_BYTES_MAX", 50)
    monkeypatch.setattr(session_module, "PARKED_MAX", 3)

    async def main() -> None:
        parked = ParkedRequests()
        waits: list[float] = []
        parked.observe = waits.append
        assert parked.quantile_s(0.99) == 0
        with parked.parked([b"SET", b"a", b"1"]):
            with parked.parked([b"SET", b"a", b"1" * 50]):
                assert (parked.count, parked.size) == (2, 59)
                with pytest.raises(RedisError, match="TRYAGAIN"), parked.parked([b"GET", b"a"]):
                    pass
            with parked.parked([b"GET", b"a"]), parked.parked([b"GET", b"b"]):
                with pytest.raises(RedisError, match="TRYAGAIN"), parked.parked([b"GET", b"a"]):
                    pass
                await asyncio.sleep(0.02)
        assert (parked.count, parked.size, parked.total) == (0, 0, 4)
        assert parked.longest_s == parked.quantile_s(0.99) == max(waits) >= 0.02
        assert parked.quantile_s(0) < 0.02

    run(main())


def test_how_long_a_request_waited_is_kept() -> None:
    view = two_nodes(PartitionState.STUCK)
    copy, key = view.copy(0), key_of(0)
    copy.is_serving = False

    async def main() -> None:
        async with connected(view) as client:
            parked = client.server.parking
            client.send(f"SET {key} 1")
            assert await client.is_silent()
            assert parked.count == 1
            copy.is_serving = True
            assert await client.answers(1) == ["OK"]
            assert (parked.count, parked.total) == (0, 1)
            assert 0.04 < parked.longest_s < 1

    run(main())
