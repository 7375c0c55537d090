"""A worker process that is stopped for longer than its lease, as by SIGSTOP."""

import sys
import time
from pathlib import Path

from tests.kits.processes import RealProcess

TIMEOUT_MS = 1_000
WAIT_S_MAX = 120.0

PROGRAM = f"""
import asyncio, time
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.errors import LeaseLost
from raftwood.loghub.consumer.leases import LeaseTimes
from raftwood.loghub.consumer.processor import Processor
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from raftwood.loghub.consumer.worker import Worker, WorkerConfig
from tests.kits.loghub.workers import FakeSource

def tell(text):
    print(text, flush=True)

class Working(Processor):
    def process(self, batches, tracker):
        tell("begins")
        stopped_s, before = 0.0, time.monotonic()
        while stopped_s < 2 * {TIMEOUT_MS} / 1000:
            time.sleep(0.01)
            stopped_s, before = time.monotonic() - before, time.monotonic()
        # Nobody but this thread has run since the process goes on, or the loop has: all the same.
        try:
            tracker.save_checkpoint(after=batches[0])
        except LeaseLost:
            tell("lost")
            raise
        tell("saved")

async def main(environment):
    config = WorkerConfig(instance="a", times=LeaseTimes(timeout_ms={TIMEOUT_MS}))
    store, source = MemoryLeaseStore(), FakeSource(1, length=4)
    worker = Worker(config, Working, store, source=source, environment=environment)
    running = asyncio.create_task(worker.run())
    while "overruns_total 1.0" not in worker.metrics.render():
        await asyncio.sleep(0.01)
    tell("counted")
    await running

with real_environment() as environment:
    asyncio.run(main(environment))
"""


def test_a_processor_hears_of_its_lease_in_its_own_call_after_the_process_was_stopped(
    tmp_path: Path,
) -> None:
    worker = RealProcess("worker", tmp_path)

    def until(word: str) -> list[str]:
        deadline = time.monotonic() + WAIT_S_MAX
        while word not in (said := worker.output.read_text().split()):
            assert time.monotonic() < deadline, worker.tail()
            time.sleep(0.02)
        return said

    try:
        worker.launch((sys.executable, "-c", PROGRAM), {"PYTHONPATH": ":".join(sys.path)})
        until("begins")
        worker.pause()
        time.sleep(3 * TIMEOUT_MS / 1000)
        worker.resume()
        said = until("counted")
        assert "saved" not in said
        assert "lost" in until("lost")
    finally:
        worker.discard()
