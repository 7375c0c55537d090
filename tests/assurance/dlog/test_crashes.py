"""A crash at every single step of a take-over, a rotation, the end, and of shrinking."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress

import pytest

from raftwood.base.errors import RaftwoodError
from raftwood.base.position import Position
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.meta import LogConfig
from raftwood.dlog.settings import DlogSettings
from tests.kits.dlog.logs import Kit, read_all, run_logs
from tests.kits.dlog.simulation.faults import Client, FaultyLedgers, FaultyMeta

COUNT = 12
SHARES = 4
CONFIG = LogConfig(entries_max=3, grace_ms=1)
SETTINGS = DlogSettings(pause_ms=1, entry_bytes=1)
Acked = dict[int, Position]
Work = Callable[[Dlogs, Acked], Coroutine[None, None, None]]


async def append(dlogs: Dlogs, acked: Acked) -> None:
    """Take over, append across rotations, and close."""
    writer = await dlogs.open_writer("a")
    try:
        futures = []
        for number in range(COUNT):
            futures.append(writer.submit(b"%d" % number, producer="p", sequence=number))
            if number % 5 == 4:
                await writer.rotate()
        for number, future in enumerate(futures):
            acked[number] = await future
        await writer.close()
    finally:
        await writer.abandon()


async def terminate(dlogs: Dlogs, acked: Acked) -> None:
    await append(dlogs, acked)
    await dlogs.terminate("a")


async def shrink(dlogs: Dlogs, acked: Acked) -> None:
    await append(dlogs, acked)
    await dlogs.shrink("a", acked[8])


async def crashed_at(kit: Kit, work: Work, step: int | None) -> tuple[list[str], Acked]:
    """Its steps up to the crash, and what was acked."""
    client = Client(random.Random(step))
    client.crash_at = step
    acked: Acked = {}
    dlogs = Dlogs(
        kit.environment,
        FaultyMeta(kit.metastore, client),
        FaultyLedgers(kit.ledgers, client),
        SETTINGS,
    )
    task = asyncio.create_task(work(dlogs, acked))
    await asyncio.wait([task, client.crashed], return_when=asyncio.FIRST_COMPLETED)
    client.crash()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return client.steps, acked


async def check_what_is_left(kit: Kit, acked: Acked) -> None:
    """The next writer finds all that was acked, and stores what was not."""
    dlogs = kit.dlogs(SETTINGS)
    writer = await dlogs.open_writer("a")
    positions: Acked = {}
    with suppress(RaftwoodError):
        for number in range(COUNT):
            positions[number] = await writer.append(b"%d" % number, producer="p", sequence=number)
    assert len(positions) == COUNT or writer.is_terminated
    await writer.close()
    assert {number: positions[number] for number in acked} == acked
    info = await dlogs.info("a")
    found = await read_all(await dlogs.open_reader("a"), info.first)
    by_position = {each.position: int(bytes(each.message.payload)) for each in found}
    assert by_position == {
        position: number for number, position in positions.items() if position >= info.first
    }
    await dlogs.remove_orphans()
    listed = [each.ledger for each in info.meta.ledgers]
    assert [each async for each in kit.ledgers.ledgers() if each <= listed[-1]] == listed


async def scenario(kit: Kit, work: Work, step: int | None) -> list[str]:
    """One crash at a step, or at none; the steps up to there."""
    dlogs = kit.dlogs(SETTINGS)
    await dlogs.create("a", CONFIG)
    old = await dlogs.open_writer("a")
    await old.append(b"0", producer="p", sequence=0)
    await old.abandon()
    found, acked = await crashed_at(kit, work, step)
    await asyncio.sleep(0.01)
    await check_what_is_left(kit, acked)
    return found


def steps_of(work: Work, *, crash_at: int | None = None) -> list[str]:
    steps: list[str] = []

    async def whole(kit: Kit) -> None:
        steps.extend(await scenario(kit, work, crash_at))

    run_logs(whole)
    return steps


@pytest.mark.parametrize("share", range(SHARES))
def test_after_a_crash_at_any_step_of_appending_nothing_acked_is_lost_or_twice(share: int) -> None:
    steps = steps_of(append)
    assert {"before recover", "after create", "after set", "append", "before close"} <= set(steps)
    for step in range(share, len(steps), SHARES):
        steps_of(append, crash_at=step)


@pytest.mark.parametrize("work", [terminate, shrink])
def test_after_a_crash_at_any_step_behind_that_nothing_acked_is_lost_or_twice(work: Work) -> None:
    begins = steps_of(append)
    steps = steps_of(work)
    assert steps[: len(begins)] == begins
    assert len(steps) > len(begins)
    for step in range(len(begins), len(steps)):
        steps_of(work, crash_at=step)
