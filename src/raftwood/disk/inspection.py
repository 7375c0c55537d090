"""Looking into a data folder without changing it: what `raftwood store check` and `dump` show."""

from collections.abc import Callable

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import StoreDamaged
from raftwood.disk.explaining import explained
from raftwood.disk.folder import DataFolder, Identity
from raftwood.disk.segment_log.format import (
    KIND_DROP,
    KIND_HEAD,
    KIND_RUN,
    KIND_STATE,
    KIND_TAIL,
)
from raftwood.disk.segment_log.recovery import Damage, inspect
from raftwood.disk.segment_log.replay import Replay
from raftwood.disk.segment_log.scan import ScannedRecord

KIND_NAMES = {
    KIND_RUN: "run",
    KIND_STATE: "state",
    KIND_HEAD: "truncate-head",
    KIND_TAIL: "truncate-tail",
    KIND_DROP: "drop-group",
}


class GroupReport(msgspec.Struct, frozen=True):
    """What the log holds of one group."""

    group: int
    head: int
    next_index: int
    runs: int
    state_bytes: int


class StoreReport(msgspec.Struct, frozen=True):
    """The state of a data folder."""

    path: str
    identity: Identity
    segments: int
    log_bytes: int
    flushes: int
    records: int
    live_bytes: int
    groups: list[GroupReport]
    damages: list[Damage]

    @property
    def is_intact(self) -> bool:
        return not self.damages


async def check_store(environment: Environment, path: str) -> StoreReport:
    """Read and verify everything in a folder that no process uses."""
    folder = await DataFolder.open_existing(environment, path)
    replay = Replay()
    records = 0

    def take(record: ScannedRecord) -> None:
        nonlocal records
        records += 1
        replay.apply(record)

    try:
        with explained(path):
            found = await inspect(environment.files, folder.log_path, take)
    finally:
        await folder.close()
    groups: list[GroupReport] = []
    live_bytes = 0
    damages = list(found.damages)
    try:
        index, live = replay.finish()
        live_bytes = live.total
        groups = [
            GroupReport(n, g.head, g.next_index, g.run_count, len(g.state or b""))
            for n, g in sorted(index.items())
        ]
    except StoreDamaged as error:
        damages.append(Damage(folder.log_path, 0, error.message))
    return StoreReport(
        path=path,
        identity=folder.identity,
        segments=len(found.used_bytes),
        log_bytes=sum(found.used_bytes.values()),
        flushes=found.flush_count,
        records=records,
        live_bytes=live_bytes,
        groups=groups,
        damages=damages,
    )


async def visit_records(
    environment: Environment, path: str, visit: Callable[[ScannedRecord], None]
) -> list[Damage]:
    """Hand every intact record to `visit`, in log order; returns what is damaged."""
    folder = await DataFolder.open_existing(environment, path)
    try:
        with explained(path):
            return (await inspect(environment.files, folder.log_path, visit)).damages
    finally:
        await folder.close()
