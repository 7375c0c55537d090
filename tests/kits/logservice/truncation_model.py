"""A host of one shard without I/O, under the real truncation worker; it may crash at every step."""

import random
from types import SimpleNamespace
from typing import Any

import msgspec

from raftwood.base.errors import DiskFull, InvalidInput
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.logservice.server.truncation import TruncationWorker
from raftwood.logservice.settings import LogServiceSettings
from tests.kits.models import Violation

SHARD = 1
SETTINGS = LogServiceSettings(snapshot_entries=10, snapshots_kept=4, stall_alarm_ms=60_000)


class Crashed(BaseException):
    """The process ends here."""


class ModelHost:
    """What is durable is in the attributes; a call may crash before or after it took effect."""

    def __init__(self, source: random.Random, *, crash_share: float = 0.0) -> None:
        self._random = source
        self._crash_share = crash_share
        self.snapshots: list[int] = []
        self.first_index = 1
        self.applied_index = 0
        self.has_room = True
        self.state_machine = LogStateMachine()
        self.now_ms = 0
        self.environment: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic_ns=lambda: self.now_ms * 1_000_000)
        )

    def worker(self) -> TruncationWorker:
        return TruncationWorker(self.environment, self, SETTINGS)  # type: ignore[arg-type]

    # As the worker sees it

    def groups(self) -> list[int]:
        return [SHARD]

    def status(self, shard: int) -> Any:
        assert shard == SHARD
        return SimpleNamespace(
            snapshots=tuple(self.snapshots),
            first_index=self.first_index,
            applied=self.applied_index,
        )

    def applied(self, shard: int) -> int:
        assert shard == SHARD
        return self.applied_index

    def freeable_index(self, shard: int) -> int:
        return self.machine(shard).freeable_index

    def machine(self, shard: int) -> LogStateMachine:
        assert shard == SHARD
        return self.state_machine

    def stored_bytes(self, shard: int) -> tuple[int, int]:
        assert shard == SHARD
        return (self.applied_index + 1 - self.first_index) * 100, len(self.snapshots) * 10

    async def snapshot(self, shard: int) -> None:
        assert shard == SHARD
        if not self.has_room:
            raise DiskFull("no room for a snapshot")
        self._may_crash()
        if self.applied_index not in self.snapshots:
            self.snapshots.append(self.applied_index)
        self._may_crash()

    async def compact(self, shard: int, up_to: int) -> None:
        assert shard == SHARD
        visible = max(index for index in self.snapshots if index <= up_to)
        self._may_crash()
        self.snapshots = [index for index in self.snapshots if index >= visible]
        self.first_index = max(self.first_index, visible + 1)
        self._may_crash()

    async def drop_snapshot(self, shard: int, index: int) -> None:
        assert shard == SHARD
        if index not in self.snapshots[1:-1]:
            raise InvalidInput(f"snapshot {index} is needed: {self.snapshots}")
        self._may_crash()
        self.snapshots.remove(index)
        self._may_crash()

    def _may_crash(self) -> None:
        self.check()
        if self._random.random() < self._crash_share:
            raise Crashed

    def check(self) -> None:
        """All that can be read is here, and a replica can start and help others to start."""
        first = self.state_machine.state.first_lsn
        if self.first_index > first:
            raise Violation(f"the log begins at {self.first_index}, {first} can be read")
        if self.first_index == 1:
            return  # whoever joins gets the log from its beginning
        if not self.snapshots or self.snapshots[0] < self.first_index - 1:
            raise Violation(f"no snapshot from {self.first_index - 1} on: {self.snapshots}")
        if self.snapshots[0] >= first:
            raise Violation(f"what joins gets {self.snapshots[0]}, {first} can be read")


class Course(msgspec.Struct):
    """What a run came to."""

    crashes: int = 0
    cuts: int = 0


async def run_course(seed: int, *, steps: int = 300) -> Course:
    """Entries, truncations, rounds of the worker and crashes, in any order."""
    source = random.Random(seed)
    host = ModelHost(source, crash_share=source.choice((0.0, 0.05, 0.3)))
    state = host.state_machine.state
    worker, course = host.worker(), Course()
    for _ in range(steps):
        host.now_ms += 500
        choice = source.random()
        if choice < 0.5:
            host.applied_index += source.randint(1, 12)
        elif choice < 0.6 and host.applied_index:
            state.truncated = max(state.truncated, source.randint(1, host.applied_index))
        elif choice < 0.65 and host.applied_index:
            state.required = source.choice(
                (0, source.randint(state.first_lsn, state.first_lsn + 9))
            )
        else:
            before = host.first_index
            try:
                await worker.work()
            except Crashed:
                course.crashes += 1
                worker = host.worker()
            course.cuts += host.first_index > before
            host.check()
    await _come_to_rest(host, worker)
    return course


async def _come_to_rest(host: ModelHost, worker: TruncationWorker) -> None:
    """Nothing that could be freed stays, and the snapshots are few."""
    host._crash_share = 0.0
    host.state_machine.state.required = 0
    for _ in range(2):
        host.applied_index += SETTINGS.snapshot_entries
        await worker.work()
    host.state_machine.state.truncated = host.applied_index
    await worker.work()
    kept = host.applied_index + 1 - host.first_index
    if kept > SETTINGS.snapshot_entries:
        raise Violation(f"{kept} entries are kept, and all are truncated")
    if len(host.snapshots) > SETTINGS.snapshots_kept + 1:
        raise Violation(f"more snapshots than are to be kept: {host.snapshots}")
