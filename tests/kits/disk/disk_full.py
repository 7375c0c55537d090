"""Run in a mount namespace, on a file system of its own: fill the disk, go on when there is room.

Prints one JSON object of what happened; the test judges it.
"""

import asyncio
import json
import sys

import uvloop

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import LogSettings, Run, SetState, TruncateHead
from raftwood.disk.store import Store

SETTINGS = LogSettings(segment_bytes=64 << 10, full_retry_ms=20, cache_bytes_max=0)


async def main(environment: Environment, path: str) -> None:
    store = await Store.open(environment, path, cluster="full", store=1, settings=SETTINGS)
    log, acked, refusal = store.log, 0, ""
    while not refusal and acked < 10_000:
        try:
            await log.commit(Run(1, 1, acked + 1, 1, b"%08d" % acked * 100))
            acked += 1
        except DiskFull as error:
            refusal = error.message
    # States and truncations have a reserve, so that the way out is not closed as well.
    await log.commit(SetState(1, b"still possible"), TruncateHead(1, acked - 20))
    went_on = 0
    for _ in range(200):
        try:
            await log.commit(Run(1, 1, acked + went_on + 1, 1, b"new room" * 100))
            went_on += 1
        except DiskFull:
            await asyncio.sleep(0.02)
    await store.close()
    store = await Store.open(environment, path, cluster="full", store=1, settings=SETTINGS)
    bounds = store.log.bounds(1)
    runs = []
    index = bounds.head
    while index < bounds.next_index:
        runs += await store.log.read(1, index)
        index = runs[-1].first_index + 1
    intact = all(
        bytes(run.payload) == (b"%08d" % (run.first_index - 1) * 100)
        for run in runs
        if run.first_index <= acked
    )
    print(
        json.dumps(
            {
                "acked": acked,
                "refusal": refusal,
                "went_on": went_on,
                "head": bounds.head,
                "next": bounds.next_index,
                "intact": intact,
            }
        )
    )
    await store.close()


if __name__ == "__main__":
    with real_environment() as real:
        run = uvloop.run if sys.argv[2] == "uvloop" else asyncio.run
        run(main(real, sys.argv[1]))
