"""Memory, spool and drops, under random loads."""

import errno
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Operation
from raftwood.clogs.client.backlog import CUT, Backlog
from raftwood.clogs.client.batch_builder import LineDelivery
from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.clogs.client.shipping_rules import QueuedBatch
from raftwood.clogs.errors import LinesDropped
from raftwood.testing import ImmediateFiles
from tests.kits.clogs.backlog_run import NAMES, BacklogRun, outcome
from tests.kits.clogs.ring import settings_of
from tests.kits.disk.log_in_memory import WatchedFiles, run

POLICIES: dict[str, dict[str, object]] = {
    "drop": {"when_full": "drop-oldest"},
    "spool": {"when_full": "spool", "spool_folder": "/data"},
    "always": {"when_full": "spool", "spool": "always", "spool_folder": "/data"},
    "always and drop": {"spool": "always", "spool_folder": "/data"},
    "block": {"when_full": "block"},
    "block and spool": {"when_full": "block", "spool": "always", "spool_folder": "/data"},
}


def small(**changes: object) -> ClogsClientSettings:
    values: dict[str, object] = {
        "memory_bytes_max": 64 << 10,
        "spool_bytes_max": 1 << 20,
        "batch_bytes_max": 8 << 10,
        "linger_ms": 30,
        "compression": "none",
    }
    return settings_of(**(values | changes))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_uncounted_and_drops_are_what_is_missing(policy: str, seed: int) -> None:
    given = BacklogRun(small(**POLICIES[policy]), seed)
    run(given.run(200))
    if policy.startswith("block"):
        assert given.counters.dropped == 0
    if policy == "drop":
        assert given.counters.dropped > 0


def gone_for_long(given: BacklogRun) -> Callable[[int], None]:
    def fault(turn: int) -> None:
        given._is_up = turn > 250

    return fault


@pytest.mark.parametrize("policy", ["spool", "always", "always and drop"])
def test_a_spool_takes_what_memory_has_no_room_for_and_then_the_oldest_are_dropped(
    policy: str,
) -> None:
    given = BacklogRun(small(**POLICIES[policy]), 7)
    given.stored_when_down = 0.0
    run(given.run(280, gone_for_long(given)))
    counters = given.counters
    assert counters.server("server").spooled > 0
    assert counters.dropped > 0
    # What was kept is what came last, but for a batch of each file that may have been sent.
    for name in NAMES:
        stored = [int(line.split()[0]) for line in given.storage.lines(name)]
        gaps = [(a, b) for a, b in pairwise(stored) if b != a + 1]
        assert len(gaps) <= 1


@pytest.mark.parametrize("seed", range(2))
def test_a_full_disk_falls_back_to_dropping_and_is_used_again_when_there_is_room(
    seed: int,
) -> None:
    given = BacklogRun(small(**POLICIES["spool"]), seed)
    spooled = []

    def fault(turn: int) -> None:
        given._is_up = turn > 250
        system = given.files.file_system
        if turn == 60:
            system.capacity_bytes = system.used_bytes()
        if turn == 200:
            spooled.append(given.counters.server("server").spooled)
            spooled.append(given.counters.dropped)
            system.capacity_bytes = None

    run(given.run(300, fault))
    assert spooled[1] > 0
    assert given.counters.server("server").spooled > spooled[0]


@pytest.mark.parametrize("kind", [seam.DataSync, seam.Write])
@pytest.mark.parametrize("policy", ["spool", "always"])
def test_a_disk_that_fails_costs_no_line_that_can_be_read_or_is_in_memory(
    policy: str, kind: type[Operation]
) -> None:
    is_failing = False

    def watch(operation: Operation) -> None:
        if is_failing and isinstance(operation, kind):
            raise OSError(errno.EIO, "broken")

    def fault(turn: int) -> None:
        nonlocal is_failing
        given._is_up = turn > 80 or turn < 10
        is_failing = turn >= 60

    given = BacklogRun(
        small(**POLICIES[policy], memory_bytes_max=1 << 20), 3, files=WatchedFiles(watch)
    )
    run(given.run(120, fault))
    assert given.spool is not None
    assert given.spool.is_failed or policy == "spool"
    assert given.counters.dropped == 0


def test_what_a_failed_disk_cannot_give_back_is_counted_and_told() -> None:
    is_failing = False

    def watch(operation: Operation) -> None:
        if is_failing and isinstance(operation, seam.DataSync | seam.Read):
            raise OSError(errno.EIO, "broken")

    def fault(turn: int) -> None:
        nonlocal is_failing
        given._is_up = turn > 150
        is_failing = turn >= 100

    given = BacklogRun(small(**POLICIES["always"]), 3, files=WatchedFiles(watch))
    run(given.run(200, fault))
    assert given.counters.dropped > 0


class ForgetsToCount(Backlog):
    """A planted bug: a batch is dropped and not counted."""

    def _count_dropped(self, entry: QueuedBatch) -> None:
        if entry.count % 3:
            super()._count_dropped(entry)


class DropsWhatWasSent(Backlog):
    """A planted bug: lines that were sent are taken for dropped."""

    def _drop_oldest(self, *, with_spool: bool) -> bool:
        for entry in list(self._in_memory):
            if entry.was_sent:
                self._in_memory.pop(entry)
                entry.was_sent = False
                self._drop(entry)
                return True
        return super()._drop_oldest(with_spool=with_spool)


class NeverForgets(Backlog):
    """A planted bug: the room of a batch that is over is not given back."""

    def _settle(
        self,
        entry: QueuedBatch,
        deliveries: Sequence[tuple[LineDelivery, int]],
        error: RaftwoodError | None,
    ) -> None:
        held_bytes = entry.held_bytes
        super()._settle(entry, deliveries, error)
        self.held_bytes += held_bytes


@pytest.mark.parametrize("kind", [ForgetsToCount, DropsWhatWasSent, NeverForgets])
def test_planted_bugs_are_caught(kind: type[Backlog]) -> None:
    given = BacklogRun(small(**POLICIES["drop"]), 5, kind=kind)
    given.stored_when_down = 0.5
    with pytest.raises(AssertionError):
        run(given.run(200))


async def opened(**changes: object) -> BacklogRun:
    given = BacklogRun(small(**changes), 1)
    await given.open()
    return given


def test_lines_behind_a_batch_that_is_dropped_do_not_wait_for_ever() -> None:
    async def main() -> None:
        given = await opened(memory_bytes_max=64 << 10, batch_bytes_max=60 << 10)
        backlog = given.backlog
        backlog.take("a.log", [b"first" * 2000], time_ns=1, now=0.0)
        backlog.form_due(1.0)
        backlog.take("a.log", [b"second"], time_ns=1, now=1.0)
        backlog.form_due(2.0)  # its batch is not idle: it waits for an answer
        backlog.take("b.log", [b"x" * (29 << 10)], time_ns=1, now=2.0)
        backlog.take("c.log", [b"x" * (29 << 10)], time_ns=1, now=2.0)
        assert given.counters.dropped == 1
        backlog.form_due(3.0)
        assert b"second" in b"".join(
            bytes(entry.batch.body) for entry in given.rules.entries() if entry.batch is not None
        )

    run(main())


def test_many_lines_at_once_are_cut_into_batches_and_long_lines_are_cut() -> None:
    async def main() -> None:
        given = await opened(line_bytes_max=1000, memory_bytes_max=10 << 20, batch_lines_max=50)
        given.backlog.take("a.log", [b"x" * 900] * 100, time_ns=1, now=0.0)
        given.backlog.take("a.log", [b"", b"y" * 5000], time_ns=1, now=0.0)
        given.backlog.take("b.log", [b"z"] * 120, time_ns=1, now=0.0)
        given.backlog.form_all()
        entries = given.rules.entries()
        assert max(entry.size for entry in entries) < 2 * (8 << 10) + 2000
        assert max(entry.count for entry in entries) <= 100
        assert given.counters.cut == 1
        await given.settle_all()
        assert given.storage.lines("a.log")[-1] == b"y" * (1000 - len(CUT)) + CUT

    run(main())


def test_at_the_end_what_is_in_no_spool_is_dropped_and_all_are_told() -> None:
    async def main() -> None:
        for has_spool in (False, True):
            files = ImmediateFiles()
            policy = POLICIES["spool"] if has_spool else POLICIES["drop"]
            given = BacklogRun(small(**policy), 1, files=files)
            await given.open()
            delivery = LineDelivery(2)
            given.backlog.take("a.log", [b"1", b"2"], time_ns=1, now=0.0, delivery=delivery)
            given.backlog.keep_all()
            dropped = given.backlog.give_up()
            assert delivery.is_done
            told = outcome(delivery)
            assert told is not None
            assert ("in the spool" in told.message) == has_spool
            assert dropped == given.counters.dropped == (0 if has_spool else 2)
            assert given.backlog.held_lines == (2 if has_spool else 0)
            if given.spool is not None:
                await given.spool.close()
                again = BacklogRun(small(**policy), 2, files=files)
                await again.open()
                assert again.counters.resumed == 2
                await again.settle_all()
                assert again.storage.lines("a.log") == [b"1", b"2"]

    run(main())


def test_dropped_lines_are_told_to_who_gave_them() -> None:
    async def main() -> None:
        given = await opened()
        first = LineDelivery(1)
        given.backlog.take("a.log", [b"x" * (40 << 10)], time_ns=1, now=0.0, delivery=first)
        given.backlog.take("a.log", [b"y" * (40 << 10)], time_ns=1, now=0.0)
        assert isinstance(outcome(first), LinesDropped)
        assert given.counters.dropped == 1

    run(main())
