"""Gateways that die between any two steps of what they carry out, or take long for one."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from raftwood.loghub.server.catalog import LogstoreReconciler
from raftwood.loghub.server.metadata import Metadata
from raftwood.testing import PROCESS, ProcessEnded, Simulation

_LATE_S_MAX = 4.0
_STEPS: tuple[tuple[type, str], ...] = (
    (LogstoreReconciler, "_create"),
    (LogstoreReconciler, "_seal"),
    (LogstoreReconciler, "_remove"),
    (Metadata, "change"),
)


class CrashPoints:
    """A share of all steps is the last one of its gateway: before it, or right after it."""

    def __init__(self, simulation: Simulation, *, share: float, late_share: float) -> None:
        self._random = random.Random(f"crash points {simulation.seed}")
        self._simulation = simulation
        self._share = share
        self._late_share = late_share
        self.is_armed = False
        self.count = 0

    def _reach(self) -> None:
        process = PROCESS.get()
        if process is None or not self.is_armed or self._random.random() >= self._share:
            return
        machine = self._simulation.machines.get(process.node.name)
        if machine is not None and machine.node.process is process:
            self.count += 1
            machine.kill()
            raise ProcessEnded("a crash point")

    def _around(self, step: Any) -> Any:
        async def stepping(*arguments: Any, **options: Any) -> Any:
            self._reach()
            if self.is_armed and self._random.random() < self._late_share:
                await asyncio.sleep(self._random.uniform(0, _LATE_S_MAX))
            result = await step(*arguments, **options)
            self._reach()
            return result

        return stepping

    @contextmanager
    def planted(self) -> Iterator[None]:
        patches = [
            mock.patch.object(owner, name, self._around(getattr(owner, name)))
            for owner, name in _STEPS
        ]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()
