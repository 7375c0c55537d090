"""A durable log under fire: a writer is killed with -9 again and again, and nothing acked is lost.

The parent only believes the pipe: what the writer acked before it died must be found, whole, by the
next one, and in the end by the parent itself.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from raftwood.base.configuration import load_configuration
from raftwood.base.errors import InternalError
from raftwood.disk.real_environment import real_environment
from raftwood.disk.store import Store
from raftwood.server.settings import Settings
from raftwood_demos.durable_log_writer import (
    BATCH_BYTES,
    GROUPS,
    IN_FLIGHT,
    KEPT_BATCHES,
    RECORDS_PER_BATCH,
    verify,
)

_START_SECONDS_MAX = 60.0


class Life(msgspec.Struct, frozen=True):
    """One life of the writer, from start to kill."""

    number: int
    seconds: float
    records_acked: int
    records_per_second: float
    megabytes_per_second: float
    recovery_ms: float
    records_found: int
    records_missing: int
    """Acked in an earlier life and not found at the start of this one."""


class DurableLogOutcome(msgspec.Struct, frozen=True):
    """All lives, and what the last look found."""

    lives: list[Life]
    records_acked: int
    records_missing: int
    records_verified: int

    @property
    def held(self) -> bool:
        return self.records_missing == 0 and self.records_acked > 0


async def run(
    path: str,
    *,
    kills: int,
    seconds: float,
    on_life: Callable[[Life], None],
    config: str | None = None,
    assignments: tuple[str, ...] = (),
) -> DurableLogOutcome:
    """Let the writer live and die `kills` times, then look for everything it acked."""
    acked = dict.fromkeys(range(GROUPS), 0)
    lives: list[Life] = []
    for number in range(1, kills + 1):
        # Killed at a moment that nobody chose.
        life = await _live(
            path, number, seconds * random.uniform(0.5, 1.5), acked, config, assignments
        )
        lives.append(life)
        on_life(life)
    verified, missing = await last_look(path, acked, config, assignments)
    return DurableLogOutcome(
        lives=lives,
        records_acked=sum(life.records_acked for life in lives),
        records_missing=missing + sum(life.records_missing for life in lives),
        records_verified=verified,
    )


async def _live(
    path: str,
    number: int,
    seconds: float,
    acked: dict[int, int],
    config: str | None,
    assignments: tuple[str, ...],
) -> Life:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "raftwood_demos.durable_log_writer",
        path,
        *assignments,
        env=os.environ | ({"RAFTWOOD_CONFIG": config} if config else {}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_SECONDS_MAX):
            found, recovery_ms = await _start_of_life(process)
        missing = sum(_missing(last, *found[group]) for group, last in acked.items())
        began = time.perf_counter()
        asyncio.get_running_loop().call_later(seconds, process.send_signal, signal.SIGKILL)
        batches = 0
        async for line in process.stdout:
            # The kill may cut the last line short: then nobody was told.
            if line.endswith(b"\n"):
                _, group, index = line.split()
                acked[int(group)] = max(acked[int(group)], int(index))
                batches += 1
        elapsed = time.perf_counter() - began
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
    return Life(
        number=number,
        seconds=elapsed,
        records_acked=batches * RECORDS_PER_BATCH,
        records_per_second=batches * RECORDS_PER_BATCH / elapsed,
        megabytes_per_second=batches * BATCH_BYTES / elapsed / 1e6,
        recovery_ms=recovery_ms,
        records_found=sum(end - head for head, end in found.values()) * RECORDS_PER_BATCH,
        records_missing=missing,
    )


async def _start_of_life(
    process: asyncio.subprocess.Process,
) -> tuple[dict[int, tuple[int, int]], float]:
    assert process.stdout is not None
    assert process.stderr is not None
    found: dict[int, tuple[int, int]] = {}
    async for line in process.stdout:
        word, *values = line.split()
        if word == b"opened":
            return found, float(values[0])
        group, head, next_index = map(int, values)
        found[group] = (head, next_index)
    reason = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
    raise InternalError(
        f"the writer could not start: {reason[-1] if reason else 'no reason given'}"
    )


def _missing(last_acked: int, head: int, next_index: int) -> int:
    """How many records of a group are gone that were acked and not truncated."""
    head_max = max(1, last_acked + IN_FLIGHT - KEPT_BATCHES + 1)
    batches = max(0, last_acked + 1 - next_index) + max(0, head - head_max)
    return batches * RECORDS_PER_BATCH


async def last_look(
    path: str, acked: dict[int, int], config: str | None = None, assignments: tuple[str, ...] = ()
) -> tuple[int, int]:
    """(records verified, records missing), read by this process itself."""
    with real_environment() as environment:
        settings = settings_of(config, assignments).log
        store = await Store.open(environment, path, cluster="demo", store=1, settings=settings)
        verified = missing = 0
        for group, last in acked.items():
            head, next_index = await verify(store.log, group)
            verified += (next_index - head) * RECORDS_PER_BATCH
            missing += _missing(last, head, next_index)
        await store.close()
    return verified, missing


def settings_of(config: str | None, assignments: tuple[str, ...]) -> Settings:
    """The settings of this process, read as every command reads them."""
    return load_configuration(
        Settings,
        file=config or os.environ.get("RAFTWOOD_CONFIG") or None,
        environment=os.environ,
        assignments=assignments,
    ).settings
