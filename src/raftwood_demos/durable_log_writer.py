"""The victim of `durable_log`: opens a store, verifies it, then appends until it is killed.

    python -m raftwood_demos.durable_log_writer FOLDER [section.key=value …]

Says on standard output, a line each:
    found G HEAD NEXT    after start, per group, everything in between verified
    opened MILLISECONDS  the time that recovery took
    acked G INDEX        the batch at INDEX is durable, and so are all before it

Every batch can be told from its group and index alone, byte for byte.
"""

import asyncio
import os
import sys
import time
from typing import Final

from xxhash import xxh3_128_digest

from raftwood.base.configuration import load_configuration
from raftwood.base.environment import Environment, SystemClock
from raftwood.base.errors import StoreDamaged
from raftwood.base.logs import set_up_logs
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import Run, SegmentLog, TruncateHead
from raftwood.disk.store import Store
from raftwood.server.event_loop import run
from raftwood.server.settings import Settings

GROUPS: Final = 8
RECORDS_PER_BATCH: Final = 50
RECORD_BYTES: Final = 100
BATCH_BYTES: Final = RECORDS_PER_BATCH * RECORD_BYTES
IN_FLIGHT: Final = 4
"""Batches of each group that are on their way to the disk at any moment."""
KEPT_BATCHES: Final = 4000
"""Of each group; older ones are truncated, so that segments are freed while the writer runs."""


def batch(group: int, index: int) -> bytes:
    """The batch that belongs at an index: nothing else can be mistaken for it."""
    digest = xxh3_128_digest(b"%d/%d" % (group, index))
    return (digest * (BATCH_BYTES // len(digest) + 1))[:BATCH_BYTES]


async def verify(log: SegmentLog, group: int) -> tuple[int, int]:
    """(head, next) of a group, after comparing every batch with what it must be."""
    if group not in log.groups():
        return 1, 1
    bounds = log.bounds(group)
    index = bounds.head
    while index < bounds.next_index:
        for stored in await log.read(group, index, bytes_max=4 << 20):
            if stored.payload != batch(group, stored.first_index):
                raise StoreDamaged(
                    f"group {group}, batch {stored.first_index}: not what was written"
                )
            index = stored.first_index + 1
    return bounds.head, bounds.next_index


async def main(environment: Environment, settings: Settings, path: str) -> None:
    began = time.perf_counter()
    store = await Store.open(environment, path, cluster="demo", store=1, settings=settings.log)
    log = store.log
    opened_ms = (time.perf_counter() - began) * 1000
    found = {group: await verify(log, group) for group in range(GROUPS)}
    for group, (head, next_index) in found.items():
        _say(f"found {group} {head} {next_index}")
    _say(f"opened {opened_ms:.1f}")
    loop = asyncio.get_running_loop()
    for group, (_, next_index) in found.items():
        for ahead in range(IN_FLIGHT):
            loop.call_soon(_append, log, group, next_index + ahead)
    await asyncio.Event().wait()


def _append(log: SegmentLog, group: int, index: int) -> None:
    def durable() -> None:
        _say(f"acked {group} {index}")
        asyncio.get_running_loop().call_soon(_append, log, group, index + IN_FLIGHT)

    records: list[Run | TruncateHead] = [Run(group, 1, index, 1, batch(group, index))]
    if index % 100 == 0 and index > KEPT_BATCHES:
        records.append(TruncateHead(group, index - KEPT_BATCHES))
    log.write(records, durable)


def _say(line: str) -> None:
    try:
        os.write(1, line.encode() + b"\n")
    except BrokenPipeError:
        os._exit(1)  # nobody is left to be told, and nobody to kill this process


if __name__ == "__main__":
    given = load_configuration(
        Settings,
        file=os.environ.get("RAFTWOOD_CONFIG") or None,
        environment=os.environ,
        assignments=tuple(sys.argv[2:]),
    ).settings
    set_up_logs(given.logs, clock=SystemClock())
    with real_environment() as real:
        run(main(real, given, sys.argv[1]))
