"""Turns: bounded by pieces and by time, shared in slices, half of each for what has just come; what
is urgent goes first, with planted bugs.
"""

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tests.kits.models import Mutant, replaced, weathers
from tests.kits.net.rpc import (
    COUNT,
    ECHO,
    HOLD,
    TELL,
    WAIT,
    Handlers,
    RawPeer,
    dial,
    raw_peer,
    serving,
)
from tests.kits.running import in_virtual_time as simulated
from tests.kits.running import until
from tests.kits.turns import counting
from tests.unit.net.conftest import Run

import raftwood
from raftwood.base.errors import PermissionDenied
from raftwood.clogs.wire import PING
from raftwood.logservice.wire import ORDERS_WAIT, SERVICE_HEARTBEAT, STORE_HEARTBEAT
from raftwood.net import Call, Method, Payload, ServerLimits
from raftwood.net.frames import FrameKind, encode_frame
from raftwood.net.limits import URGENT_BYTES_MAX, URGENT_REQUESTS_MAX
from raftwood.net.listeners import FairScheduler, TurnLimits
from raftwood.raft.client_protocol import HEARTBEAT, RENEW
from raftwood.testing.loop import SimulatedLoop

LIMITS = TurnLimits(pieces_max=40, slice_pieces_max=8, clock_pieces=4, turn_ms=10, rest_ms=50)
ASK = Method(9, "ask")
SOURCE = Path(raftwood.__file__).parent


class Worker:
    """A connection with so much to do; `costs_s` is what a piece takes."""

    def __init__(
        self, turns: FairScheduler, name: str, pieces: int, *, costs_s: float = 0.0
    ) -> None:
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
        turns = FairScheduler(LIMITS)
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
        turns = FairScheduler(LIMITS)
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
        turns = FairScheduler(LIMITS)
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
        turns = FairScheduler(LIMITS)
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
        turns = FairScheduler(LIMITS, is_behind=lambda: is_behind)
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
        turns = FairScheduler(LIMITS)
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

    async def work(turns: FairScheduler, number: int) -> None:
        for _ in range(3):
            await turns.pause()
            done.append(number)

    async def main() -> None:
        turns = FairScheduler(limits)
        async with counting(lambda: len(done)) as most, asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(work(turns, number))
        assert most.in_a_turn <= limits.pieces_max
        assert sorted(done) == sorted(list(range(10)) * 3)

    in_virtual_time(main())


# What is urgent


class UrgentWorker(Worker):
    def work(self) -> None:
        before = self.done
        while self.left and self.turns.take_urgent():
            self.left -= 1
            self.done += 1
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            loop.now += self.costs_s
        self.slices.append(self.done - before)
        if self.left:
            self.turns.queue(self.work, urgent=True)


def urgent_work_beside_clients(seed: int) -> None:
    """Some send more heartbeats than there is room for, beside clients with deep pipelines."""
    source = random.Random(seed)

    async def main() -> None:
        is_behind, costs_s = seed % 2 == 1, source.choice([0, 0.0005, 0.02])
        turns = FairScheduler(LIMITS, is_behind=lambda: is_behind)
        clients = [Worker(turns, "client", 30) for _ in range(source.randint(1, 5))]
        urgent = [
            UrgentWorker(turns, "urgent", source.randint(1, 40), costs_s=costs_s)
            for _ in range(source.randint(1, 5))
        ]
        everyone = [*clients, *urgent]
        source.shuffle(everyone)
        for each in everyone:
            turns.queue(each.work, urgent=isinstance(each, UrgentWorker))
        step, loop = turns._next, asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        wrong = loop.create_future()

        def watched() -> None:
            assert isinstance(loop, SimulatedLoop)
            loop.now += 0.0001
            if wrong.done():
                return
            try:
                look_on()
            except AssertionError as error:
                wrong.set_exception(error)

        def look_on() -> None:
            waited = [each for each in urgent if each.left]
            is_resting = turns._rest is not None
            have_waited = any(each.left for each in clients)
            before = sum(each.done for each in urgent)
            had = [len(each.slices) for each in clients]
            step()
            done = sum(each.done for each in urgent) - before
            assert bool(done) == bool(waited), "what was urgent had no part of a turn"
            assert done <= LIMITS.pieces_max // 4, "what is urgent took more than its share"
            slices = sum(len(each.slices) for each in clients) - sum(had)
            assert slices or is_resting or not have_waited, "clients had no part of a turn"

        turns._next = watched  # type: ignore[method-assign]
        await asyncio.wait([wrong], timeout=10)
        if wrong.done():
            wrong.result()
        assert not any(each.left for each in everyone), "somebody waits for ever"
        turns.close()

    simulated(main())


def in_one_queue(self: FairScheduler, work: Any, *, urgent: bool = False) -> None:  # noqa: ARG001
    QUEUE(self, work)


def without_a_share(self: FairScheduler) -> bool:
    self._urgent_slice_left -= 1
    return self._urgent_slice_left >= 0


def while_it_may(self: FairScheduler) -> None:
    """As it was once: without a slice for clients where the half is over already."""
    if self._half_left > 0 and self._loop.time() < self._half_ends:
        SERVE(self)


QUEUE, SERVE = FairScheduler.queue, FairScheduler._serve
URGENT_MUTANTS = {
    "what is urgent stands in the queue of all": Mutant(
        urgent_work_beside_clients, replaced(FairScheduler, queue=in_one_queue), harm="had no part"
    ),
    "what is urgent has no bound": Mutant(
        urgent_work_beside_clients,
        replaced(FairScheduler, take_urgent=without_a_share),
        harm="its share",
    ),
    "clients wait for as long as anything is urgent": Mutant(
        urgent_work_beside_clients,
        replaced(FairScheduler, _serve=while_it_may),
        harm="clients had no part",
    ),
}


@pytest.mark.parametrize("seed", range(12))
def test_what_is_urgent_goes_first_and_clients_keep_their_part(seed: int) -> None:
    urgent_work_beside_clients(seed)


@pytest.mark.parametrize("name", URGENT_MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    URGENT_MUTANTS[name].catch()


@pytest.mark.parametrize("name", weathers(URGENT_MUTANTS))
def test_without_a_bug_there_is_no_harm(name: str) -> None:
    URGENT_MUTANTS[name].run(URGENT_MUTANTS[name].first)


def test_what_is_urgent_and_has_just_come_is_begun_though_the_turn_is_full(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        turns = FairScheduler(LIMITS)
        while turns.begin():
            assert turns.take(8)
        for _ in range(LIMITS.pieces_max // 4):
            turns.begin_urgent()
            assert turns.take_urgent()
        turns.begin_urgent()
        assert not turns.take_urgent(), "they have a share, too"
        await turn()
        turns.begin_urgent()
        assert [turns.take_urgent() for _ in range(5)] == [True] * LIMITS.clock_pieces + [False]
        turns.close()

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
    encode_frame(FrameKind.REQUEST, method=COUNT.number, request_id=9_999, payload=b"3 100"),
    encode_frame(FrameKind.CREDIT, request_id=9_999, argument=1_000),
)


async def is_streamed(peer: RawPeer, *, behind: int) -> None:
    kinds = [frame[0] for _ in range(behind + 4) if (frame := await peer.frame())]
    assert kinds.count(FrameKind.STREAM_ITEM) == 3
    assert kinds[-1] == FrameKind.STREAM_END


def test_credit_is_not_lost_where_its_streams_request_waits_for_a_turn(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with serving(handlers.service) as (server, port), raw_peer(port) as peer:
            count = server.turns.limits.pieces_max
            echo = encode_frame(FrameKind.REQUEST, method=ECHO.number, request_id=1)
            peer.send(b"".join([*[echo] * count, *STREAM]))
            await is_streamed(peer, behind=count)

    in_virtual_time(main())


def test_credit_is_not_lost_where_its_streams_request_waits_for_room(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Handlers()
        limits = ServerLimits(requests_in_flight_max=1)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            hold = encode_frame(FrameKind.REQUEST, method=HOLD.number, request_id=1)
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
            tell = encode_frame(FrameKind.ONE_WAY, method=TELL.number)
            ask = encode_frame(FrameKind.REQUEST, method=ECHO.number, request_id=1)
            peer.writer.write(tell * room + ask + tell)
            frame = await peer.frame()
            assert frame is not None
            assert frame[2] == 1
            assert len(handlers.told) == room + 1

    in_virtual_time(main())


BEAT = Method(30, "beat", urgent=True)
LEASE = Method(31, "lease", urgent=True)
DENIED = Method(32, "denied", urgent=True, roles=("node",))


class Beats(Handlers):
    """With a heartbeat that is answered at once, a lease that is not, and what takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.asked_before: list[int] = []
        self.leases: list[Call] = []
        self.service.fast(ASK, self._ask)
        self.service.fast(BEAT, self._beat)
        self.service.fast(LEASE, lambda call, _payload: self.leases.append(call))
        self.service.fast(DENIED, self._beat)

    def _ask(self, call: Call, _: Payload) -> None:
        self.asked += 1
        call.reply()

    def _beat(self, call: Call, _: Payload) -> None:
        self.asked_before.append(self.asked)
        call.reply()


def test_a_heartbeat_does_not_wait_behind_the_requests_of_its_connection(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        handlers = Beats()
        async with serving(handlers.service) as (server, port), raw_peer(port) as peer:
            count = 1_000
            assert count > server.turns.limits.pieces_max
            ask = encode_frame(FrameKind.REQUEST, method=ASK.number, request_id=1)
            beat = encode_frame(FrameKind.REQUEST, method=BEAT.number, request_id=2)
            peer.send(ask * count + beat)
            for _ in range(count + 1):
                await peer.frame()
            assert handlers.asked_before[0] <= server.turns.limits.slice_pieces_max

    in_virtual_time(main())


def test_a_heartbeat_passes_what_other_connections_wait_with(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Beats()
        async with (
            serving(handlers.service) as (server, port),
            raw_peer(port) as deep,
            raw_peer(port) as peer,
        ):
            # This turn has no room for what has just come, and others wait for all of the next one.
            limits = server.turns.limits
            while server.turns.begin():
                server.turns.take(limits.clock_pieces)
            asked = Worker(server.turns, "others", 10_000)
            server.turns.queue(asked.work)
            for session in server._sessions:
                frames = [
                    (FrameKind.REQUEST, ASK.number, number, 0, b"") for number in range(1, 900)
                ]
                session._dispatch([*frames, (FrameKind.REQUEST, BEAT.number, 1_000, 0, b"")])
            assert handlers.asked_before == [0, 0]
            assert handlers.asked == 0
            for each in (deep, peer):
                for _ in range(900):
                    assert await each.frame() is not None
            await until(lambda: not asked.left)

    in_virtual_time(main())


def test_leases_pass_the_bounds_on_requests_within_a_bound_of_their_own(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        handlers = Beats()
        limits = ServerLimits(requests_in_flight_max=1)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            peer.request(HOLD, 1)
            for number in range(3, 23):
                peer.request(LEASE, number)
            peer.request(LEASE, 2, bytes(URGENT_BYTES_MAX + 1))
            await asyncio.sleep(1)
            # The one that is large stands behind what is held.
            assert [call.request_id for call in handlers.leases] == [
                *range(3, 3 + URGENT_REQUESTS_MAX)
            ]
            handlers.leases[0].reply()
            handlers.leases[1].reply()
            await asyncio.sleep(1)
            assert len(handlers.leases) == URGENT_REQUESTS_MAX + 2
            handlers.held[0].reply()
            for call in handlers.leases:
                call.reply()
            await asyncio.sleep(1)
            assert handlers.leases[-1].request_id == 22
            for call in handlers.leases:
                call.reply()
            await asyncio.sleep(1)
            assert handlers.leases[-1].request_id == 2
            handlers.leases[-1].reply()
            frames = [await peer.frame() for _ in range(22)]
            assert {frame[0] for frame in frames if frame} == {FrameKind.RESPONSE}

    in_virtual_time(main())


def test_an_urgent_method_that_the_peer_may_not_call_waits_as_all_else(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        handlers = Beats()
        limits = ServerLimits(requests_in_flight_max=1)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            peer.request(HOLD, 1)
            peer.request(DENIED, 2)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(peer.frame(), 1)
            handlers.held[0].reply()
            frames = [await peer.frame() for _ in range(2)]
            kinds = [(frame[0], frame[2]) for frame in frames if frame]
            assert kinds == [(FrameKind.RESPONSE, 1), (FrameKind.ERROR, 2)]
            assert handlers.asked_before == []

    in_virtual_time(main())


def test_a_heartbeat_that_waits_for_its_peer_to_read_is_begun_once_it_does(
    in_virtual_time: Run,
) -> None:
    async def main() -> None:
        handlers = Beats()
        async with serving(handlers.service) as (server, port), raw_peer(port) as peer:
            (session,) = server._sessions
            session.pause_writing()
            session._dispatch([(FrameKind.REQUEST, BEAT.number, 1, 0, b"")])
            assert handlers.asked_before == []
            session.resume_writing()
            frame = await peer.frame()
            assert frame is not None
            assert (frame[0], frame[2]) == (FrameKind.RESPONSE, 1)
            peer.request(ECHO, 2)
            assert await peer.frame() is not None, "the server reads on"

    in_virtual_time(main())


def test_a_lease_that_waits_can_be_cancelled_and_may_come_too_late(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Beats()
        limits = ServerLimits(requests_in_flight_max=1)
        async with serving(handlers.service, limits=limits) as (_, port), raw_peer(port) as peer:
            for number in range(1, URGENT_REQUESTS_MAX + 2):
                peer.request(LEASE, number)
            peer.send(
                encode_frame(FrameKind.REQUEST, method=LEASE.number, request_id=90, argument=500)
            )
            peer.request(LEASE, 91)
            peer.send(encode_frame(FrameKind.CANCEL, request_id=91))
            await asyncio.sleep(1)
            for call in list(handlers.leases):
                call.reply()
            await asyncio.sleep(1)
            asked = [call.request_id for call in handlers.leases]
            assert asked == [*range(1, URGENT_REQUESTS_MAX + 2)]
            answers = [await peer.frame() for _ in range(URGENT_REQUESTS_MAX + 1)]
            assert [frame[2] for frame in answers if frame and frame[0] == FrameKind.ERROR] == [90]
            handlers.leases[-1].reply()

    in_virtual_time(main())


def test_tasks_of_clients_do_not_keep_a_heartbeats_task_out(in_virtual_time: Run) -> None:
    task_beat = Method(33, "task-beat", urgent=True)

    async def beat(_call: Call, _payload: Payload) -> bytes:
        return b"alive"

    async def main() -> None:
        handlers = Handlers()
        handlers.service.task(task_beat, beat)
        limits = ServerLimits(handler_tasks_max=2)
        async with (
            serving(handlers.service, limits=limits) as (_, port),
            await dial(port) as connection,
        ):
            waiting = [connection.call(WAIT, b"x", 60_000) for _ in range(2)]
            await asyncio.sleep(0.1)
            assert await connection.call(task_beat, b"", 1_000) == b"alive"
            handlers.release.set()
            await asyncio.gather(*waiting)

    in_virtual_time(main())


def test_a_client_sends_a_heartbeat_before_its_requests_that_wait(in_virtual_time: Run) -> None:
    async def main() -> None:
        handlers = Beats()
        limits = ServerLimits(requests_in_flight_max=2)
        async with (
            serving(handlers.service, limits=limits) as (_, port),
            await dial(port) as connection,
        ):
            held = [connection.call(HOLD, b"", 60_000) for _ in range(5)]
            assert await connection.call(BEAT, b"", 1_000) == b""
            assert len(handlers.held) == 2
            with pytest.raises(PermissionDenied):
                await asyncio.wait_for(denied_after(connection, handlers), 30)
            await asyncio.gather(*held)

    async def denied_after(connection: Any, handlers: Beats) -> None:
        denied = connection.call(DENIED, b"", 60_000)
        for number in range(5):
            await until(lambda number=number: len(handlers.held) > number)  # type: ignore[misc]
            handlers.held[number].reply()
        await denied

    in_virtual_time(main())


def test_leases_and_heartbeats_are_declared_as_urgent() -> None:
    methods = (STORE_HEARTBEAT, SERVICE_HEARTBEAT, ORDERS_WAIT, RENEW, HEARTBEAT, PING)
    assert all(method.is_urgent for method in methods)


# Every listener


def test_every_listener_takes_turns_and_counts_handshakes() -> None:
    listens = re.compile(r"\.create_server\(|\bstart_server\(")
    found = {
        str(path.relative_to(SOURCE)): "turns" in text and "TlsAcceptor(" in text
        for path in SOURCE.rglob("*.py")
        if "testing" not in path.parts and listens.search(text := path.read_text())
    }
    assert found == dict.fromkeys(
        (
            "loghub/server/ways_in/socket_server.py",
            "net/http_listener.py",
            "net/server.py",
            "zeppelin/node/data_server.py",
        ),
        True,
    ), "a listener shares the turns of the loop among its connections, see net/listeners.py, and "
    "counts connections amid a TLS handshake, see net/tls_acceptor.py"
