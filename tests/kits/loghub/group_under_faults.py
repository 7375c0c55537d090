"""A group of consumers as processes that also stall, or lose their store of leases."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from raftwood_demos.consumers import ConsumerGroup, Fault, WatchedGroup
from raftwood_demos.standalone_process import StandaloneProcess

RECORDS_PER_S = 60
STILL_S_MAX = 60.0
PAUSES_TRIED_MAX = 20
PAUSE_APART_S = 0.13


class GroupUnderFaults(WatchedGroup):
    @contextmanager
    def paused(self, name: str, is_fair: Callable[[], bool]) -> Iterator[None]:
        """At a moment that is fair to others."""
        for _ in range(PAUSES_TRIED_MAX):
            began_ns = time.monotonic_ns()
            self.processes.signal(name, signal.SIGSTOP)
            if is_fair():
                break
            self.processes.signal(name, signal.SIGCONT)
            time.sleep(PAUSE_APART_S)
        else:
            raise AssertionError(f"{name} holds the store whenever it is stopped")
        yield
        self.processes.signal(name, signal.SIGCONT)
        pids = frozenset([self.pids[name]])
        self.faults.append(Fault(pids, began_ns, time.monotonic_ns(), is_overrun=True))

    @contextmanager
    def without_its_store(self, absence: AbstractContextManager[None]) -> Iterator[None]:
        began_ns = time.monotonic_ns()
        with absence:
            yield
        pids = frozenset(self.processes.pids().values())
        self.faults.append(Fault(pids, began_ns, time.monotonic_ns()))

    def stands_still(self, *, for_s: float) -> None:
        """Once it has, nothing is processed for so long."""
        deadline = time.monotonic() + STILL_S_MAX
        before = -1
        while before != self.notes.processed:
            assert time.monotonic() < deadline, "shards are processed without their leases"
            before = self.notes.processed
            time.sleep(for_s)
            self.notes.update()


@contextmanager
def group_under_faults(
    folder: str, store: str, *, shards: int, timeout_s: float
) -> Iterator[GroupUnderFaults]:
    group = ConsumerGroup(stream="p/s", group="g", store=store, timeout_s=timeout_s)
    with StandaloneProcess(folder) as standalone, standalone.client() as client:
        client.create_project("p")
        client.create_logstore("p", "s", shard_count=shards)
        with GroupUnderFaults.open(
            f"{folder}/consumers", client, standalone.loghub, group, records_per_s=RECORDS_PER_S
        ) as found:
            yield found
