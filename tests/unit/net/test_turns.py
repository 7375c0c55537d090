"""Turns: bounded by pieces and by time, shared in slices, half of each for what has just come."""

import asyncio
import re
from pathlib import Path

from tests.kits.net.rpc import (
    COUNT,
    ECHO,
    HOLD,
    TELL,
    Handlers,
    RawPeer,
    dial,
    raw_peer,
    serving,
)
from tests.kits.turns import counting
from tests.unit.net.conftest import Run

import raftwood
from raftwood.net import Call, Method, Payload, ServerLimits
from raftwood.net.frames import Kind, encode_frame
from raftwood.net.turns import TurnLimits, Turns
from raftwood.simulation.loop import SimulatedLoop

LIMITS = TurnLimits(pieces_max=40, slice_pieces_max=8, clock_pieces=4, turn_ms=10, rest_ms=50)
ASK = Method(9, "ask")
SOURCE = Path(raftwood.__file__).parent


class Worker:
    """A connection with so much to do; `costs_s` is what a piece takes."""

    def __init__(self, turns: Turns, name: str, pieces: int, *, costs_s: float = 0.0) -> None:
        self.turns, self.name, self.left, self.costs_s = turns, name, pieces, costs_s
        self.done = 0
        self.slices: list[int] = []

    def work(self) -> None:
        before = self.done
        while self.left and self.turns.take():
            self.left -= 1
            self.done += 1
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            loop.now += self.costs_s
        self.slices.append(self.done - before)
        if self.left:
            self.turns.queue(self.work)


async def turn() -> None:
    await asyncio.sleep(0)


def test_a_turn_has_so_many_pieces_and_each_connection_its_slice(in_virtual_time: Run) -> None:
    async def main() -> None:
        turns = Turns(LIMITS)
        workers = [Worker(turns, name, 100) for name in "abc"]
        for each in workers:
            turns.queue(each.work)
        async with counting(lambda: sum(each.done for each in workers)) as most:
            while any(each.left for each in workers):
                done = [each.done for each in workers]
                assert max(done) - min(done) <= LIMITS.slice_pieces_max
                await turn()
        assert most.in_a_turn <= LIMITS.pieces_max // 2 + LIMITS.slice_pieces_max
        assert all(max(each.slices) <= LIMITS.slice_pieces_max for each in workers)
        assert turns.queue_length == 0

    in_virtual_time(main())


def test_a_turn_is_over_when_its_time_is_though_pieces_are_left(in_virtual_time: Run) -> None:
    async def main() -> None:
        turns = Turns(LIMITS)
        workers = [Worker(turns, name, 20, costs_s=0.002) for name in "ab"]
        for each in workers:
            turns.queue(each.work)
        async with counting(lambda: sum(each.done for each in workers)) as most:
            while any(each.left for each in workers):
                await turn()
        # 5 ms are over in the third piece, and the clock is looked at after the fourth.
        assert most.in_a_turn == LIMITS.clock_pieces

    in_virtual_time(main())


def test_a_piece_that_may_have_taken_long_has_the_clock_looked_at(in_virtual_time: Run) -> None:
    async def main() -> None:
        turns = Turns(LIMITS)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        assert turns.begin()
        assert turns.take(3) == 3
        loop.now += 1
        turns.look_again(unused=2)
        assert turns.take() == 0

    in_virtual_time(main())


def test_what_has_just_come_has_half_of_a_turn_whoever_waits(in_virtual_time: Run) -> None:
    async def main() -> None:
        turns = Turns(LIMITS)
        deep = [Worker(turns, f"deep {number}", 10_000) for number in range(10)]
        for each in deep:
            turns.queue(each.work)
        for _ in range(20):
            await turn()
            for _ in range(LIMITS.pieces_max // 2):
                assert turns.begin()
                assert turns.take() == 1
            assert not turns.begin()
        assert sum(each.done for each in deep) >= 20 * LIMITS.pieces_max // 2
        turns.close()

    in_virtual_time(main())


def test_while_it_is_behind_there_is_a_slice_for_each_rest(in_virtual_time: Run) -> None:
    async def main() -> None:
        is_behind = True
        turns = Turns(LIMITS, is_behind=lambda: is_behind)
        worker = Worker(turns, "a", 100)
        turns.queue(worker.work)
        await asyncio.sleep(0.24)
        assert worker.slices == [8] * 5
        assert turns.begin(), "those that send little are taken from"
        is_behind = False
        await asyncio.sleep(0.03)
        assert not worker.left

    in_virtual_time(main())


def test_a_connection_that_has_gone_is_not_called(in_virtual_time: Run) -> None:
    async def main() -> None:
        turns = Turns(LIMITS)
        stays, goes = Worker(turns, "stays", 1), Worker(turns, "goes", 1)
        turns.queue(goes.work)
        turns.queue(stays.work)
        turns.forget(goes.work)
        await asyncio.sleep(0.01)
        assert (stays.done, goes.done) == (1, 0)

    in_virtual_time(main())


def test_tasks_wait_for_room(in_virtual_time: Run) -> None:
    limits = TurnLimits(pieces_max=4, slice_pieces_max=1)
    done: list[int] = []

    async def work(turns: Turns, number: int) -> None:
        for _ in range(3):
            await turns.pause()
            done.append(number)

    async def main() -> None:
        turns = Turns(limits)
        async with counting(lambda: len(done)) as most, asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(work(turns, number))
        assert most.in_a_turn <= limits.pieces_max
        assert sorted(done) == sorted(list(range(10)) * 3)

    in_virtual_time(main())


# The servers of `net`


def test_requests_that_come_at_once_take_turns_and_stay_in_order(run: Run) -> None:
    asked: list[int] = []

    def answer(call: Call, payload: Payload) -> None:
        asked.append(int(bytes(payload)))
        call.reply(b"")

    async def main() -> None:
        handlers = Handlers()
        handlers.service.fast(ASK, answer)
        async with serving(handlers.service) as (server, port), raw_peer(port) as peer:
            limits = server.turns.limits
            most_allowed = limits.pieces_max + 2 * limits.slice_pieces_max
            async with counting(lambda: len(asked)) as most, await dial(port) as other:
                for number in range(1, 5_001):
                    peer.request(ASK, number, b"%d" % number)
                assert await other.call(ECHO, b"x", timeout_ms=30_000) == b"x"
                for _ in range(5_000):
                    await peer.frame()
            assert asked == list(range(1, 5_001))
            assert 0 < most.in_a_turn <= most_allowed

    run(main())


STREAM = (
    encode_frame(Kind.REQUEST, method=COUNT.number, request_id=9_999, payload=b"3 100"),
    encode_frame(Kind.CREDIT, request_id=9_999, argument=1_000),
)


async def is_streamed(peer: RawPeer, *, behind: int) -> None:
    kinds = [frame[0] for _ in range(behind + 4) if (frame := await peer.frame())]
    assert kinds.count(Kind.STREAM_ITEM) == 3
    assert kinds[-1] == Kind.STREAM_END


def test_credit_is_not_lost_where_its_streams_request_waits_for_a_turn(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port), raw_peer(port) as peer:
            count = server.turns.limits.pieces_max
            echo = encode_frame(Kind.REQUEST, method=ECHO.number, request_id=1)
            peer.send(b"".join([*[echo] * count, *STREAM]))
            await is_streamed(peer, behind=count)

    in_virtual_time(main())


def test_credit_is_not_lost_where_its_streams_request_waits_for_room(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(requests_in_flight_max=1)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            hold = encode_frame(Kind.REQUEST, method=HOLD.number, request_id=1)
            peer.send(b"".join([hold, *STREAM]))
            await asyncio.sleep(1)
            handlers.held[0].reply(b"")
            await is_streamed(peer, behind=1)

    in_virtual_time(main())


def test_one_way_messages_do_not_wait_and_requests_give_way_to_them(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port), raw_peer(port) as peer:
            room = server.turns.limits.pieces_max // 2
            # One read of the server's: 32 KiB.
            tell = encode_frame(Kind.ONE_WAY, method=TELL.number)
            ask = encode_frame(Kind.REQUEST, method=ECHO.number, request_id=1)
            peer.writer.write(tell * room + ask + tell)
            frame = await peer.frame()
            assert frame is not None
            assert frame[2] == 1
            assert len(handlers.told) == room + 1

    in_virtual_time(main())


# Every listener


def test_every_listener_takes_turns() -> None:
    listens = re.compile(r"\.create_server\(|\bstart_server\(")
    found = {
        str(path.relative_to(SOURCE)): "turns" in path.read_text()
        for path in SOURCE.rglob("*.py")
        if "simulation" not in path.parts and listens.search(path.read_text())
    }
    assert found == dict.fromkeys(
        (
            "loghub/server/ways_in/socket_server.py",
            "net/http_listener.py",
            "net/server.py",
            "zeppelin/node/data_server.py",
        ),
        True,
    ), "whatever listens shares the turns of the loop among its connections: see net/turns.py"
