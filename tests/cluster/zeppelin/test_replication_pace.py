"""Two nodes on a real disk and real sockets, at the full rate of the master: lag, and its bound."""

import asyncio
from pathlib import Path

import pytest

from raftwood.zeppelin.model import Gap, PartitionState
from raftwood.zeppelin.records import KeyWrite
from raftwood.zeppelin.replication import master, sender
from tests.kits.zeppelin.real_nodes import RealNode, changed, run_pair, topology, until

WRITES_A_TURN = 64
TURNS = 200
LAG_TURNS_MAX = 60
"""A slave shares this process's turns, so its lag is counted in them and not in seconds."""


def test_the_lag_of_a_slave_is_bounded_at_the_masters_full_rate(tmp_path: Path) -> None:
    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two], min_replicas=1)
        await one.apply(told)
        await two.apply(told)
        await until(lambda: one.replica.acks.replicas_with(1) == 1)
        worst = 0
        for turn in range(TURNS):
            for number in range(WRITES_A_TURN):
                one.write(KeyWrite(b"key%d" % (turn * number), b"v" * 100))
            await asyncio.sleep(0)
            worst = max(worst, one.store.last_sequence - two.store.last_sequence)
        assert worst <= LAG_TURNS_MAX * WRITES_A_TURN
        await until(lambda: two.store.last_sequence == one.store.last_sequence)
        assert two.contents() == one.contents()

    run_pair(tmp_path, scenario)


def slow_the_slave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice at a time is under way to it, whatever the link is found to hold."""
    monkeypatch.setattr(sender.Feed, "window_bytes", property(lambda _: 1 << 10))
    monkeypatch.setattr(sender, "SLICE_BYTES", 4 << 10)


@pytest.mark.parametrize("is_paced", [True, False])
def test_a_master_does_not_run_away_from_a_slow_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_paced: bool
) -> None:
    """The slave takes about 0.5 MB a second, and clients write as fast as they are answered."""
    lag_max_bytes = 200_000
    slow_the_slave(monkeypatch)
    monkeypatch.setattr(master, "LOOK_MS", 50)
    if not is_paced:
        monkeypatch.setattr(master.AckPace, "allowed", lambda _self, done, *_, **__: done)

    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two], min_replicas=1, lag_max_bytes=lag_max_bytes)
        await one.apply(told)
        await two.apply(told)
        await until(lambda: one.replica.acks.replicas_with(1) == 1)
        worst = 0
        for _ in range(50):
            for number in range(20):
                sequence = one.write(KeyWrite(b"key%d" % number, b"v" * 1_000))
            answered = asyncio.Event()
            one.replica.acks.wait(sequence, answered.set)
            await answered.wait()
            behind = one.store.last_sequence - two.store.synced_sequence
            worst = max(worst, behind * 1_000)
        assert (worst <= 1.2 * lag_max_bytes) is is_paced

    run_pair(tmp_path, scenario)


def test_a_target_catches_up_with_a_master_that_is_slowed_down_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes about 0.5 MB a second, and clients write as fast as they are answered."""
    slow_the_slave(monkeypatch)
    monkeypatch.setattr(master, "SLOWED_CLOSE", Gap(queued_bytes=20_000, drain_ms=40))

    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two], min_replicas=1, ack="memory")
        await one.apply(told)
        await two.apply(told)
        await until(lambda: one.replica.acks.replicas_with(1) == 1)

        async def write_on(turns: int) -> int:
            """The last lag."""
            for _ in range(turns):
                if behind() <= 40_000:
                    break
                for number in range(20):
                    sequence = one.write(KeyWrite(b"key%d" % number, b"v" * 1_000))
                acks = one.replica.acks
                if not acks.is_immediate and acks.reached < sequence:
                    answered = asyncio.Event()
                    acks.wait(sequence, answered.set)
                    await answered.wait()
                await asyncio.sleep(0.005)
            return behind()

        def behind() -> int:
            return (one.store.last_sequence - two.store.synced_sequence) * 1_000

        for number in range(100):
            one.write(KeyWrite(b"old%d" % number, b"v" * 1_000))
        before = behind()
        assert await write_on(5) > before, "nobody waits for it yet"
        slow = topology(2, [one, two], min_replicas=1, ack="memory")
        await one.apply(changed(slow, state=PartitionState.SLOWDOWN, target=two.id))
        assert await write_on(10_000) <= 40_000
        await one.apply(topology(3, [one, two], min_replicas=1, ack="memory"))
        assert one.replica.acks.is_immediate

    run_pair(tmp_path, scenario)
