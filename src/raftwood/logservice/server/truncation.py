"""The truncation worker of a store: frees what the users of its shards have truncated.

Section "Truncation" of Logservice's text tells the failure that this prevents. A user truncates at
100 while the state machine has applied 200. A snapshot at 200, with the log cut there, is all that
is left after a restart; the user asks for 100, and the records are gone. So the snapshots that are
taken regularly are hidden, and the largest one at or below what may be freed becomes the visible
one, up to which the log is cut (`next_step`; planted bugs "cuts to the applied index" and "shows
the snapshot above the truncated LSN").

The worker also watches what cannot be freed: how much each shard keeps, and since when truncated
records are still there.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.logservice.hakeeper.messages import is_log
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.logservice.settings import LogServiceSettings
from raftwood.raft.node_host import NodeHost


class TruncationStep(msgspec.Struct, frozen=True):
    """What the worker does with one shard, in this order."""

    visible: int | None
    """The snapshot to make visible; None if there is none yet."""
    dropped: tuple[int, ...]
    """Hidden snapshots that are thinned out."""
    takes_snapshot: bool


def next_step(
    snapshots: Sequence[int],
    *,
    applied: int,
    freeable: int,
    entries_between: int,
    kept_max: int,
) -> TruncationStep:
    """`snapshots` are the shard's, in order; `freeable` is the last index that need not be kept."""
    # A snapshot above what may be freed is of no use now, and may be tomorrow: hidden ones are kept
    # at distances, so that one of them is close below wherever the user truncates next.
    newest = snapshots[-1] if snapshots else 0
    takes_snapshot = applied - newest >= entries_between
    below = [index for index in snapshots if index <= freeable]
    visible = below[-1] if below else None
    kept = [index for index in snapshots if visible is None or index >= visible]
    return TruncationStep(visible, _thinned(kept, kept_max), takes_snapshot)


def _thinned(snapshots: list[int], kept_max: int) -> tuple[int, ...]:
    """The snapshots to drop: those whose neighbours are closest to one another.

    Never the first, up to which the log is cut, nor the last, from which a start goes on
    (`test_what_is_thinned_is_never_the_first_nor_the_last`).
    """
    kept = list(snapshots)
    dropped = []
    while len(kept) > max(2, kept_max):
        closest = min(range(1, len(kept) - 1), key=lambda place: kept[place + 1] - kept[place - 1])
        dropped.append(kept.pop(closest))
    return tuple(dropped)


LOOKS: Final = 10
"""Looks in one period of the worker, for logs that grow quickly."""
REPLAYED_MAX: Final = 20_000
"""How many entries of a log a start may have to apply again, beside those that come until the next
look. A store that applies a million first is away for as long."""
CLOSE_S_MAX: Final = 2.0

_log = get_logger("truncation")


class ShardStorage(msgspec.Struct):
    """The disk space of a shard, as the worker saw it last."""

    retained_bytes: int = 0
    snapshot_bytes: int = 0
    snapshots: int = 0
    truncated_lsn: int = 0
    truncated_index: int = 0
    freed_index: int = 0
    """The log is cut up to here."""
    progress_ms: int = 0
    """When the log was last cut, or there was last nothing to free."""
    truncated_ms: int = 0
    """When the truncation last rose, as far as this process knows."""
    newest_snapshot: int = 0
    snapshot_ms: int = 0
    """When the newest snapshot was first seen."""


class TruncationWorker:
    """Works on all shards of one store; `run` ends with its task."""

    def __init__(
        self, environment: Environment, host: NodeHost, settings: LogServiceSettings
    ) -> None:
        self._environment = environment
        self._host = host
        self._settings = settings
        self.shards: dict[int, ShardStorage] = {}

    def now_ms(self) -> int:
        return self._environment.clock.monotonic_ns() // 1_000_000

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        period_s = self._settings.truncation_ms / 1000
        while True:
            due = loop.time() + period_s
            for _ in range(LOOKS):
                await asyncio.sleep(period_s / LOOKS)
                await self.bound_replays(REPLAYED_MAX)
                if loop.time() >= due:
                    # Snapshots take long here: freeing must not wait for more of them
                    # (`test_snapshots_that_take_long_do_not_hold_up_what_is_freed`).
                    break
            await self.work()

    async def bound_replays(self, entries_max: int) -> None:
        """Takes a snapshot of each log that has applied so many entries since the newest one: a
        start applies them again. `work` logs what could not be taken.
        """
        for shard, storage in list(self.shards.items()):
            with suppress(RaftwoodError):
                since = self._host.applied(shard) - storage.newest_snapshot
                if is_log(shard) and since >= entries_max:
                    await self._host.snapshot(shard)
                    self._observe(shard)

    async def close(self) -> None:
        """Takes last snapshots, so that the next start need not apply again what this process has
        applied."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self.bound_replays(self._settings.snapshot_entries)

    async def work(self) -> None:
        """Looks at every shard once."""
        running = self._host.groups()
        for shard in [shard for shard in self.shards if shard not in running]:
            del self.shards[shard]
        for shard in running:
            try:
                await self._work(shard)
            except NotFound:
                continue  # The replica was stopped meanwhile.
            except RaftwoodError as error:
                _log.warning("nothing freed", shard=shard, reason=error.message)
                if shard in self._host.groups():
                    self._observe(shard)

    async def _work(self, shard: int) -> None:
        host, settings = self._host, self._settings
        step = next_step(
            host.status(shard).snapshots,
            applied=host.applied(shard),
            freeable=host.freeable_index(shard),
            entries_between=settings.snapshot_entries,
            kept_max=settings.snapshots_kept,
        )
        # Room is made before any is taken: on a full disk a snapshot fails, and what could be freed
        # would wait for it (`test_a_disk_without_room_for_snapshots_is_freed_all_the_same`).
        if step.visible is not None and step.visible >= host.status(shard).first_index:
            await host.compact(shard, step.visible)
            _log.info("log cut", shard=shard, index=step.visible)
        for index in step.dropped:
            await host.drop_snapshot(shard, index)
        if step.takes_snapshot:
            await host.snapshot(shard)
        self._observe(shard)

    def _truncated_lsn(self, shard: int) -> int:
        machine = self._host.machine(shard)
        return machine.state.truncated if isinstance(machine, LogStateMachine) else 0

    def _observe(self, shard: int) -> None:
        status, now = self._host.status(shard), self.now_ms()
        known = self.shards.get(shard)
        if known is None:
            known = self.shards[shard] = ShardStorage(
                progress_ms=now, truncated_ms=now, snapshot_ms=now
            )
        known.retained_bytes, known.snapshot_bytes = self._host.stored_bytes(shard)
        known.snapshots = len(status.snapshots)
        newest = max(status.snapshots, default=0)
        if newest != known.newest_snapshot:
            known.newest_snapshot, known.snapshot_ms = newest, now
        freed, freeable = status.first_index - 1, self._host.freeable_index(shard)
        # Between two snapshots nothing can be freed, and old ones are far apart: that alone is no
        # stall to alarm an operator for.
        spread = 2 * (status.applied - freed) // self._settings.snapshots_kept
        usual = max(self._settings.snapshot_entries, spread)
        if freed > known.freed_index or freeable - freed <= usual:
            known.progress_ms = now
        if freeable > known.truncated_index:
            known.truncated_ms = now
        known.freed_index, known.truncated_index = freed, freeable
        known.truncated_lsn = self._truncated_lsn(shard)

    def alarms(self) -> list[str]:
        """Alarms, in words, about what should be freed and is not."""
        settings, now = self._settings, self.now_ms()
        found = []
        for shard, storage in self.shards.items():
            stalled_ms = now - storage.progress_ms
            if settings.stall_alarm_ms and stalled_ms >= settings.stall_alarm_ms:
                found.append(
                    f"truncation-stalled: shard {shard} was truncated up to entry "
                    f"{storage.truncated_index} and is freed up to {storage.freed_index}, "
                    f"{storage.retained_bytes} bytes, for {stalled_ms // 1000} s"
                )
            limit = settings.retained_alarm_bytes
            if limit and storage.retained_bytes > limit:
                found.append(
                    f"log-retained: shard {shard} keeps {storage.retained_bytes} bytes: truncate "
                    "it, or let go of its required LSN"
                )
        return found
