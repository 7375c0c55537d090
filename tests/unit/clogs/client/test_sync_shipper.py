"""The shipper of programs without an event loop: threads, the end, and failures to start."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DeadlineExceeded,
    InvalidInput,
    Overloaded,
    ShuttingDown,
    Unavailable,
)
from raftwood.clogs.client import sync_shipper
from raftwood.clogs.client import sync_shipper as sync_shipper_module
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.clogs.client.sync_shipper import Shipper
from raftwood.clogs.errors import LinesDropped
from tests.kits.clogs.ring import settings_of
from tests.kits.clogs.ring_thread import RingThread

NOWHERE = ("127.0.0.1:1",)


def test_lines_of_many_threads_are_stored_once_and_in_order_per_thread() -> None:
    def work(shipper: Shipper, thread: int) -> None:
        for number in range(500):
            shipper.send(f"file-{number % 3}.log", f"{thread} {number}")

    with RingThread() as ring, Shipper(ring.settings()) as shipper:
        threads = [threading.Thread(target=work, args=(shipper, each)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shipper.flush()
        for file in range(3):
            stored = [tuple(map(int, each.split())) for each in ring.lines(f"file-{file}.log")]
            for thread_number in range(4):
                of_thread = [number for each, number in stored if each == thread_number]
                assert of_thread == list(range(file, 500, 3))
        status = shipper.status()
        assert status is not None
        assert (status.counters.taken, status.counters.acked) == (2000, 2000)


def test_a_delivery_is_waited_for_in_a_thread_and_awaited_on_another_loop() -> None:
    async def awaited(shipper: Shipper) -> None:
        await shipper.send("a.log", ["two", b"three"])

    with RingThread(1) as ring, Shipper(ring.settings()) as shipper:
        shipper.send("a.log", "one").wait(60_000)
        asyncio.run(awaited(shipper))
        assert ring.lines("a.log") == [b"one", b"two", b"three"]


def test_what_is_no_line_is_refused_where_it_is_given() -> None:
    with Shipper(settings_of(servers=NOWHERE, exit_ms=0)) as shipper:
        with pytest.raises(InvalidInput, match="not a int"):
            shipper.send("a.log", [1])  # type: ignore[list-item]
        with pytest.raises(Exception, match="cannot be a file's name"):
            shipper.send("", "line")
        assert shipper.send("a.log", []).is_done
        assert shipper.status() is None
        assert shipper.thread_ident is None


def test_texts_that_are_no_utf8_and_times_out_of_range_are_stored_all_the_same() -> None:
    with RingThread(1) as ring, Shipper(ring.settings()) as shipper:
        shipper.send("a.log", ["\udc80 escaped", "\ud800 half"], time_ns=-5)
        shipper.take_record("a.log", "\ud800", 1e20, "INFO", "root")
        shipper.flush(60_000)
        assert ring.lines("a.log") == [b"\x80 escaped", b"\\ud800 half", b"\\ud800"]


def test_waits_are_bounded_and_go_on_later() -> None:
    with RingThread(1) as ring, Shipper(ring.settings()) as shipper:
        shipper.send("a.log", "one").wait(60_000)
        ring.stop_all()
        delivery = shipper.send("a.log", "two")
        with pytest.raises(DeadlineExceeded):
            delivery.wait(20)
        with pytest.raises(DeadlineExceeded):
            shipper.flush(20)
        with pytest.raises(DeadlineExceeded):
            shipper.sync(20)
        ring.start("log-0")
        shipper.flush(60_000)
        delivery.wait(60_000)
        assert ring.lines("a.log") == [b"one", b"two"]


def test_after_the_end_nothing_is_taken_and_the_figures_stay() -> None:
    with RingThread(1) as ring:
        shipper = Shipper(ring.settings())
        shipper.send("a.log", "one")
        closers = [threading.Thread(target=shipper.close) for _ in range(3)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
        with pytest.raises(ShuttingDown):
            shipper.send("a.log", "two")
        with pytest.raises(ShuttingDown):
            shipper.take_record("a.log", "two", 1.0, "INFO", "root")
        with pytest.raises(ShuttingDown):
            shipper.flush()
        status = shipper.status()
        assert status is not None
        assert status.counters.acked == 1
        assert ring.lines("a.log") == [b"one"]


def test_a_thread_that_waits_for_room_hears_of_the_end() -> None:
    settings = settings_of(
        servers=NOWHERE, when_full="block", block_ms=60_000, memory_bytes_max=128 << 10, exit_ms=0
    )
    shipper = Shipper(settings)
    line = "x" * (64 << 10)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                shipper.send("a.log", line)
        except ShuttingDown as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    time.sleep(0.1)
    shipper.close()
    worker.join(60)
    assert not worker.is_alive()
    assert len(errors) == 1


def test_whoever_waits_for_room_waits_no_longer_than_it_is_told() -> None:
    # Not compressed: these lines would take next to no room once they are a batch.
    settings = settings_of(
        servers=NOWHERE,
        when_full="block",
        block_ms=50,
        memory_bytes_max=64 << 10,
        compression="none",
        exit_ms=0,
    )
    with Shipper(settings) as shipper:
        began = time.monotonic()
        taken = 0
        with pytest.raises(Overloaded, match="50 ms"):
            for _ in range(60_000):
                shipper.send("a.log", "x" * 1000)
                taken += 1
        assert time.monotonic() - began < 60
        assert taken * 1000 <= (64 << 10) * 2 + 1000 * sync_shipper_module.ITEMS_MIN


def test_a_full_inbox_drops_the_oldest_and_counts_each() -> None:
    opened = threading.Event()

    async def opening(environment: Environment) -> AsyncShipper:
        await asyncio.get_running_loop().run_in_executor(None, opened.wait, 30)
        return await given(environment)

    with RingThread(1) as ring:
        settings = ring.settings(memory_bytes_max=64 << 10)
        given = sync_shipper._default_opening(settings, (), ())
        with Shipper(settings, opening=opening) as shipper:
            deliveries = [shipper.send("a.log", f"{number}") for number in range(1500)]
            for _ in range(2):
                shipper.take_record("a.log", "y" * (40 << 10), 1.0, "INFO", "root")
            assert len(shipper._inbox.items) == 1
            shipper.send("a.log", "last")
            opened.set()
            shipper.flush(60_000)
            assert ring.lines("a.log")[1:] == [b"last"]
            with pytest.raises(LinesDropped):
                deliveries[0].result()
            status = shipper.status()
            assert status is not None
            assert (status.counters.taken, status.counters.dropped) == (1503, 1501)
            assert status.counters.acked == 2


def test_a_failure_to_start_is_told_once_and_tried_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sync_shipper, "_REOPEN_S", 3_600.0)
    (tmp_path / "spool").write_text("a file, no folder")
    with RingThread(1) as ring:
        settings = ring.settings(when_full="spool", spool_folder=f"{tmp_path}/spool")
        with Shipper(settings) as shipper:
            shipper.send("a.log", "one")
            while shipper._failed_at is None:
                time.sleep(0.01)
            for _ in range(9):
                shipper.send("a.log", "one")
            with pytest.raises(Unavailable, match="could not be started"):
                shipper.flush()
            told = capsys.readouterr().err.splitlines()
            assert len(told) == 1
            assert "not shipped for now" in told[0]
            assert "spool" in told[0]
            (tmp_path / "spool").unlink()
            monkeypatch.setattr(sync_shipper, "_REOPEN_S", 0.0)
            shipper.send("a.log", "two")
            shipper.flush(60_000)
            assert ring.lines("a.log") == [b"one"] * 10 + [b"two"]


def test_lines_that_never_left_are_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    shipper = Shipper(settings_of(access_key="", servers=NOWHERE))
    delivery = shipper.send("a.log", ["one", "two"])
    shipper.close()
    with pytest.raises(ShuttingDown):
        delivery.wait(0)
    told = capsys.readouterr().err
    assert "a shipper needs an access key" in told
    assert "2 log lines were dropped" in told


def test_the_first_call_does_not_wait_for_the_start() -> None:
    async def opening(_: Environment) -> AsyncShipper:
        await asyncio.sleep(3_600)
        raise AssertionError

    shipper = Shipper(settings_of(servers=NOWHERE), opening=opening)
    began = time.monotonic()
    shipper.send("a.log", "one")
    assert time.monotonic() - began < 60
    # At the end what is opened is waited for, but not for ever.
    shipper._opened.cancel()  # type: ignore[union-attr]
    shipper.close(wait_ms=0)


def test_a_callback_on_the_shippers_thread_cannot_wait_for_it() -> None:
    errors: list[BaseException] = []

    def callback() -> None:
        for call in (shipper.flush, shipper.close):
            try:
                call()
            except InvalidInput as error:
                errors.append(error)

    with RingThread(1) as ring, Shipper(ring.settings()) as shipper:
        delivery = shipper.send("a.log", "one")
        delivery.when_done(callback)
        delivery.wait(60_000)
        shipper.flush(60_000)
    assert len(errors) == 2


def test_one_failure_on_the_shippers_thread_does_not_end_its_work() -> None:
    with RingThread(1) as ring, Shipper(ring.settings()) as shipper:
        shipper.send("a.log", "one")
        shipper.flush(60_000)
        drain, failures = shipper._inbox.drain, [RuntimeError("planted")]

        def failing(shipper: AsyncShipper, items_max: int) -> int:
            if failures:
                raise failures.pop()
            return drain(shipper, items_max)

        shipper._inbox.drain = failing  # type: ignore[method-assign]
        shipper.send("a.log", "two").wait(60_000)
        assert not failures
        assert ring.lines("a.log") == [b"one", b"two"]


def test_a_child_of_a_process_that_has_closed_its_shipper_waits_for_nothing() -> None:
    shipper = Shipper(settings_of(servers=NOWHERE))
    shipper.close()
    shipper.after_fork()
    began = time.monotonic()
    shipper.close()
    assert time.monotonic() - began < 60
