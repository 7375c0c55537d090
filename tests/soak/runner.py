"""Spreads seeds over processes and hands results back in the order of the seeds."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor

from raftwood.base.logs import set_up_logs
from raftwood.base.settings import LoggingSettings
from tests.soak.kinds import Result, run_seed

_AHEAD_PER_WORKER = 4
Job = tuple[str, int]


def run_jobs(jobs: Iterable[Job], workers: int) -> Generator[Result]:
    """Results in order, so that the tallies never have a hole where an interruption fell."""
    if workers == 1:
        for kind, seed in jobs:
            yield run_seed(kind, seed)
        return
    # Forked children would inherit the display's thread in whatever state it is.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_prepare_worker) as executor:
        waiting: deque[Future[Result]] = deque()
        try:
            for kind, seed in jobs:
                waiting.append(executor.submit(run_seed, kind, seed))
                if len(waiting) >= workers * _AHEAD_PER_WORKER:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _prepare_worker() -> None:
    """Ctrl-C reaches the whole process group; only the parent acts on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Full disks and the like are the daily bread here.
    set_up_logs(LoggingSettings(level="error"), clock=None)
