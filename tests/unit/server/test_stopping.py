"""A process that is told to stop does so, whoever reads its log."""

import asyncio
import os
import signal

import pytest

from raftwood.cli import process
from raftwood.disk.real_environment import real_environment


class _Closed:
    def info(self, *_: object, **__: object) -> None:
        raise BrokenPipeError


def test_a_signal_stops_though_the_log_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_log", _Closed())

    async def run() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, why: failures.append(why))
        with real_environment() as environment:
            stop = process.stop_on_signals(environment)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stop.wait(), 60)
        assert failures  # it was tried

    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
