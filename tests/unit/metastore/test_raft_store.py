"""The metastore as a raft group replicates it: the suite, leases, snapshots, bounded answers."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kits.metastore.group_in_memory import (
    GROUP,
    Files,
    GroupInMemory,
    copied,
    recover,
)
from tests.kits.metastore.meta_suite import MetaSuite
from tests.kits.running import run

from raftwood.base.errors import (
    InternalError,
    InvalidInput,
    NotFound,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    UnsupportedVersion,
)
from raftwood.base.seams import KeyChange, MetaStore, SetKey
from raftwood.metastore import commands, queries
from raftwood.metastore.commands import TTL_MS_MAX
from raftwood.metastore.raft_store import FAILURES_MAX, RaftMetaStore
from raftwood.metastore.state_machine import (
    STEP_MS_MAX,
    TICK_MS,
    LeaseTicker,
    MetaStateMachine,
    encode_advance,
    encode_command,
)
from raftwood.raft.core import Entry
from raftwood.raft.state_machine import StateMachine
from raftwood.testing import Simulation, simulate


@asynccontextmanager
async def _opened(group: GroupInMemory, tickers: int = 1) -> AsyncIterator[RaftMetaStore]:
    store = RaftMetaStore(group, GROUP)
    async with group.ticking(tickers):
        yield store
    await store.close()


class TestInMemory(MetaSuite):
    @pytest.fixture(autouse=True)
    def _groups(self) -> None:
        self.groups: dict[str, GroupInMemory] = {}

    @asynccontextmanager
    async def opened(self, folder: str) -> AsyncIterator[MetaStore]:
        group = self.groups.setdefault(folder, GroupInMemory())
        async with _opened(group) as store:
            yield store


class TestInSimulation(TestInMemory):
    def run(self, main: Coroutine[Any, Any, None]) -> None:
        async def scenario(simulation: Simulation) -> None:  # noqa: ARG001
            await main

        simulate(1, scenario)


def _apply(machine: MetaStateMachine, *payloads: bytes) -> list[bytes]:
    return machine.update([Entry(1, 1, payload=payload) for payload in payloads])


def _set(key: str, value: bytes, lease: int = 0) -> bytes:
    return encode_command(commands.Transact((), (SetKey(key, value, lease),)))


@pytest.mark.parametrize("ttl_ms", [1, 400, 2000])
def test_a_lease_never_ends_early_and_soon_enough_late(ttl_ms: int) -> None:
    async def scenario(simulation: Simulation) -> None:  # noqa: ARG001
        loop = asyncio.get_running_loop()
        for attempt in range(6):
            group = GroupInMemory(attempt)
            async with _opened(group, tickers=1 + attempt % 3) as store:
                other = await store.grant_lease(ttl_ms=60_000)
                await asyncio.sleep(attempt * 0.043)
                lease = await store.grant_lease(ttl_ms=ttl_ms)
                await asyncio.sleep(min(0.1, ttl_ms / 2000))
                sent = loop.time()
                await store.transact((), (SetKey("k", b"", lease),))
                while await store.get("k") is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                lasted_ms = (loop.time() - sent) * 1000
                assert ttl_ms <= lasted_ms <= 1.3 * ttl_ms + 2 * STEP_MS_MAX
                await store.keep_alive(other)
                assert group.renewals == 1, "it goes before other clients' commands"

    simulate(3, scenario)


def test_a_stretch_of_time_counts_once_and_in_small_steps() -> None:
    machine = MetaStateMachine()
    step = encode_advance(before_ms=0, now_ms=400)
    _apply(machine, step, step, encode_advance(before_ms=0, now_ms=300))
    assert machine.now_ms == 400
    _apply(machine, encode_advance(before_ms=400, now_ms=401 + STEP_MS_MAX))
    _apply(machine, encode_advance(before_ms=400, now_ms=300))
    assert machine.now_ms == 400


def test_a_ticker_is_silent_without_leases_and_until_it_is_time() -> None:
    machine = MetaStateMachine()
    ticker = LeaseTicker(machine)
    assert ticker.due(10_000) is None
    assert ticker.due(20_000) is None
    _apply(machine, encode_command(commands.GrantLease(1000)))
    assert ticker.due(20_001) == encode_advance(before_ms=0, now_ms=STEP_MS_MAX)
    assert ticker.due(20_001 + TICK_MS - 1) is None
    command = ticker.due(20_001 + TICK_MS)
    assert command is not None
    _apply(machine, command)
    assert ticker.due(30_000) is None
    assert ticker.due(30_000 + TICK_MS) == encode_advance(
        before_ms=STEP_MS_MAX, now_ms=STEP_MS_MAX + TICK_MS
    )


def test_a_lease_that_cannot_be_kept_is_refused() -> None:
    async def main() -> None:
        store = RaftMetaStore(GroupInMemory(), GROUP)
        for ttl_ms in (0, TTL_MS_MAX):
            with pytest.raises(InvalidInput, match="give 1 to"):
                await store.grant_lease(ttl_ms=ttl_ms)
        assert await store.grant_lease(ttl_ms=TTL_MS_MAX - STEP_MS_MAX) == 1

    run(main())


def test_large_ranges_and_changes_are_told_in_parts() -> None:
    async def main() -> None:
        group = GroupInMemory()
        async with _opened(group) as store:
            for number in range(8):
                await store.transact((), (SetKey(f"k{number}", bytes(400 << 10)),))
            query = queries.encode_query(queries.RangeQuery("", "", None, 1000))
            answer = await group.read(GROUP, query, timeout_ms=1)
            assert len(answer) < queries.ANSWER_BYTES_MAX + 1000
            found = await store.range()
            assert [entry.key for entry in found.entries] == [f"k{number}" for number in range(8)]
            assert (found.version, found.next_start) == (8, None)
            found = await store.range(limit=5)
            assert (len(found.entries), found.next_start) == (5, "k5")
            seen: list[KeyChange] = []
            async for changes in store.watch("k", after_version=0):
                seen += changes
                if len(seen) == 8:
                    break
            assert [change.version for change in seen] == list(range(1, 9))

    run(main())


def test_changes_of_one_version_come_together_whatever_the_limit() -> None:
    machine = MetaStateMachine()
    pairs = encode_command(commands.Transact((), (SetKey("a", b""), SetKey("b", b""))))
    _apply(machine, pairs, _set("c", b""), _set("d", b""))
    for limit, versions, up_to in ((1, [1], 1), (3, [1, 2], 2), (4, [1, 2, 3], 3)):
        answer = machine.lookup(queries.encode_query(queries.ChangesQuery("", 0, limit)))
        found = queries.decode_answer(answer, queries.ChangesAnswer)
        assert [group[0].version for group in found.changes] == versions
        assert found.version == up_to


def test_a_watch_outlasts_a_change_of_leader_but_not_its_store() -> None:
    async def scenario(simulation: Simulation) -> None:  # noqa: ARG001
        group = GroupInMemory()
        async with _opened(group) as store:
            group.failures = FAILURES_MAX - 1
            watch = store.watch("", after_version=0)
            first = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(3)
            await store.transact((), (SetKey("a", b"1"),))
            assert await first == (KeyChange("a", b"1", 1),)
            group.failures = FAILURES_MAX
            with pytest.raises(RaftwoodError, match="nobody leads"):
                await anext(watch)
            waiting = asyncio.ensure_future(anext(store.watch("", after_version=1)))
            await asyncio.sleep(1)
            await store.close()
            with pytest.raises(ShuttingDown):
                await waiting

    simulate(1, scenario)


def test_a_snapshot_shows_the_state_of_its_first_chunk() -> None:
    async def main() -> None:
        machine: StateMachine = MetaStateMachine()
        assert isinstance(machine, MetaStateMachine)
        _apply(machine, encode_command(commands.GrantLease(9)))
        _apply(machine, *(_set(f"k{number}", bytes(300 << 10)) for number in range(3)))
        chunks = machine.save_snapshot(Files(), lambda: False)
        taken = [next(chunks)]
        _apply(machine, _set("later", b""))
        taken += chunks
        assert len(taken) > 3
        data = b"".join(taken)
        pieces = [data[start : start + 70_001] for start in range(7, len(data), 70_001)]
        copy = MetaStateMachine()
        await recover(copy, [b"", data[:2], data[2:7], *pieces])
        query = queries.encode_query(queries.DescribeQuery())
        status = queries.decode_answer(copy.lookup(query), queries.DescribeAnswer).status
        assert (status.keys, status.leases, status.version) == (3, 1, 3)
        assert (await copied(machine)).lookup(query) == machine.lookup(query)
        machine.close()

    run(main())


def test_a_snapshot_that_is_given_up_ends_early() -> None:
    async def main() -> None:
        machine = MetaStateMachine()
        _apply(machine, *(_set(f"k{number}", bytes(300 << 10)) for number in range(3)))
        assert not list(machine.save_snapshot(Files(), lambda: True))
        whole = list(machine.save_snapshot(Files(), lambda: False))
        await recover(machine, whole, stopped=True)

    run(main())


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", StoreDamaged),
        (b"another's", StoreDamaged),
        (b"RWMS\x02", UnsupportedVersion),
        (b"RWMS\x01", StoreDamaged),
        (b"RWMS\x01\x91\x01", StoreDamaged),
    ],
)
def test_what_is_no_snapshot_is_refused(data: bytes, error: type[Exception]) -> None:
    async def main() -> None:
        with pytest.raises(error):
            await recover(MetaStateMachine(), [data])

    run(main())


DEEP = b"\x91" * 100_000


@pytest.mark.parametrize(
    "payload",
    [
        b"\x93\x01\xc4\x00" + DEEP,
        b"\x94\x02\x00\x01" + DEEP,
        *(
            b"\x92\x01\xc5\xff\xff" + (command + DEEP)[: (1 << 16) - 1]
            for command in (
                b"\x92\x05",
                b"\x93\x02\x05",
                b"\x95\x01\x90\x90\x90",
                b"\x94\x01\x91\x93\xa1k\x00",
                b"\x94\x01\x90\x91\x95\x01\xa1k\xc4\x00\x00",
                b"\x94\x01\x90\x91\x93\x02\xa1k",
            )
        ),
    ],
)
def test_a_command_that_is_nested_too_deeply_is_an_error_and_ends_no_replica(
    payload: bytes,
) -> None:
    (result,) = _apply(MetaStateMachine(), payload)
    with pytest.raises(InvalidInput, match="not a command"):
        commands.decode_result(result)


def test_a_question_that_is_nested_too_deeply_is_answered_with_an_error() -> None:
    with pytest.raises(InvalidInput, match="not a question"):
        queries.decode_answer(MetaStateMachine().lookup(b"\x92\x04" + DEEP), queries.GetAnswer)


def test_what_is_no_command_or_question_is_answered_with_an_error() -> None:
    machine = MetaStateMachine()
    for payload in (b"", b"?", b"\x93\x01\xa1\xff\x00", encode_command(commands.KeepAlive(3))[:-1]):
        (result,) = _apply(machine, payload)
        with pytest.raises(InvalidInput, match="not a command"):
            commands.decode_result(result)
        with pytest.raises(InvalidInput, match="not a question"):
            queries.decode_answer(machine.lookup(payload), queries.GetAnswer)
    with pytest.raises(InternalError, match="another question"):
        answer = machine.lookup(queries.encode_query(queries.GetQuery("a")))
        queries.decode_answer(answer, queries.DescribeAnswer)
    with pytest.raises(NotFound):
        commands.decode_result(_apply(machine, encode_command(commands.KeepAlive(3)))[0])


def test_a_question_for_changes_waits_for_those_that_it_asks_for() -> None:
    async def scenario(simulation: Simulation) -> None:  # noqa: ARG001
        machine = MetaStateMachine()
        loop = asyncio.get_running_loop()
        _apply(machine, _set("here/1", b""))

        def waiting(after: int) -> "asyncio.Task[bool]":
            query = queries.encode_query(queries.ChangesQuery("here/", after, 10))
            return asyncio.create_task(machine.wait(query, 5_000))

        assert await waiting(0) is False
        assert await machine.wait(queries.encode_query(queries.DescribeQuery()), 5_000) is False
        assert await machine.wait(b"nonsense", 5_000) is False
        assert await waiting(77) is False  # the answer is an error
        assert loop.time() < 1
        began = loop.time()
        assert await waiting(1) is True
        assert 5 <= loop.time() - began < 5.1
        patient = waiting(1)
        await asyncio.sleep(1)
        _apply(machine, _set("elsewhere", b""), _set("elsewhere", b""))
        await asyncio.sleep(1)
        assert not patient.done()
        _apply(machine, _set("here/2", b""))
        await asyncio.sleep(0.001)
        assert patient.done()
        last = waiting(4)
        await asyncio.sleep(1)
        machine.close()
        await asyncio.sleep(0.001)
        assert last.done()

    simulate(1, scenario)
