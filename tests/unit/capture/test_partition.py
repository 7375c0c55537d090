"""A partition that moves is asked for at two masters for a moment: each record counts once. What
follows a snapshot stays in the binlog while that is taken.
"""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Self, cast

from raftwood.capture.capture import Capture, CapturedPartition, CaptureSettings
from raftwood.capture.rules import PartitionRules, RecentKeys
from raftwood.testing import Simulation, simulate
from raftwood.zeppelin.client.binlogs import (
    BinlogAnswer,
    BinlogWant,
    PartitionSlots,
    TableBinlogs,
)
from raftwood.zeppelin.records import BinlogPosition, BinlogRecord, KeyWrite, encode_record
from raftwood.zeppelin.slots import SLOTS

FAMILY = (PartitionSlots(0, 0, SLOTS),)


def test_what_a_former_master_said_late_does_not_count() -> None:
    async def scenario(simulation: Simulation) -> None:
        rules = PartitionRules(0, FAMILY, recent=RecentKeys(bytes_max=1_000))
        rules.begin(None)
        nothing = cast("Any", None)
        captured = CapturedPartition(
            simulation.environment,
            nothing,
            rules,
            nothing,
            snapshots=nothing,
            moved=lambda: None,
        )
        records = tuple(encode_record(BinlogRecord(1, n, (KeyWrite(b"k", b"v"),))) for n in (1, 2))
        want = rules.want
        answer = BinlogAnswer(0, "records", 2, records)
        captured.answered(want, answer)
        queued = captured.queued_bytes
        captured.answered(want, answer)
        captured.answered(want, BinlogAnswer(0, "purged"))
        assert captured.queued_bytes == queued > 0
        assert rules.want.first == 3

    simulate(1, scenario)


class _Binlogs:
    """Of a node that is master of all."""

    def __init__(self) -> None:
        self.asked: list[tuple[BinlogWant, ...]] = []

    def by_master(self, partitions: Any) -> dict[str, Any]:
        return {"n:1": list(partitions)}

    async def read(self, _: str, __: str, wants: Any, **___: Any) -> Any:
        self.asked.append(tuple(wants))
        await asyncio.sleep(0.01)


class _Pages:
    position = BinlogPosition(3, 70)
    slots = range(SLOTS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def pages(self) -> Any:
        await asyncio.sleep(10)
        nothing: tuple[object, ...] = ()
        for page in nothing:
            yield page


class _Lane:
    async def put(self, *_: object) -> None:
        pass


def test_what_follows_a_snapshot_is_held_while_it_is_taken() -> None:
    async def scenario(simulation: Simulation) -> None:
        binlogs = _Binlogs()

        async def checkpoint(_: int) -> _Pages:
            return _Pages()

        kv = cast("Any", SimpleNamespace(binlogs=binlogs, checkpoint=checkpoint))
        capture = Capture(
            simulation.environment,
            CaptureSettings(name="c", project="p", logstore="l"),
            TableBinlogs("t", 1, FAMILY),
            polling=kv,
            asking=kv,
            hub=cast("Any", SimpleNamespace(checkpoints_of=lambda *_: None)),
        )
        rules = PartitionRules(0, FAMILY, recent=RecentKeys(bytes_max=1_000))
        rules.begin(None)
        rules.purged()
        captured = capture._partitions[0] = CapturedPartition(
            simulation.environment,
            kv,
            rules,
            cast("Any", _Lane()),
            snapshots=asyncio.Semaphore(1),
            moved=lambda: None,
        )
        captured.wake()
        tasks = [asyncio.create_task(captured.run()), asyncio.create_task(capture._poll("n:1"))]
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert binlogs.asked == [(BinlogWant(0, BinlogPosition(3, 70), 71),)]

    simulate(1, scenario)
