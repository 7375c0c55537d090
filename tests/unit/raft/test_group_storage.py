"""A group's log as the core reads it, over the shared log."""

import pytest
from tests.kits.disk.log_in_memory import open_log, run

from raftwood.disk.segment_log import Run, SegmentLog, SetState
from raftwood.raft.core import (
    UNLIMITED,
    ConfState,
    Entry,
    EntryMissing,
    Snapshot,
    SnapshotNotReady,
)
from raftwood.raft.entry_format import encode_run
from raftwood.raft.group_log import EntriesNotInMemory, GroupState, GroupStorage
from raftwood.testing import ImmediateFiles

GROUP = 7
ENTRIES = [Entry(1 + index // 5, index, payload=b"%d" % index) for index in range(1, 9)]


async def _filled(files: ImmediateFiles) -> SegmentLog:
    log = await open_log(files)
    runs = [encode_run(part) for part in (ENTRIES[:2], ENTRIES[2:4], ENTRIES[4:])]
    records = [Run(GROUP, each.term, each.first_index, each.count, each.payload) for each in runs]
    await log.commit(SetState(GROUP, GroupState(1, 2, 3, 3, (1, 2, 3)).encoded()), *records)
    return log


def test_after_a_start_the_uncommitted_tail_is_in_memory_by_whole_runs() -> None:
    async def scenario() -> None:
        log = await _filled(ImmediateFiles())
        storage = GroupStorage(log, GROUP)
        await storage.load_tail(4, bytes_max=1)
        assert (storage.first_index(), storage.last_index()) == (1, 8)
        assert storage.initial_state()[0].commit == 3
        assert storage.cache.first_index == 3
        assert storage.entries(4, 9, UNLIMITED) == ENTRIES[3:]
        assert [storage.term(index) for index in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
        with pytest.raises(EntryMissing):
            storage.entries(8, 10, UNLIMITED)
        await log.close()

    run(scenario())


def test_what_only_the_disk_has_is_missed_then_fetched_then_given_up() -> None:
    async def scenario() -> None:
        log = await _filled(ImmediateFiles())
        storage = GroupStorage(log, GROUP)
        await storage.load_tail(4, bytes_max=1 << 20)
        storage.visible_snapshot = Snapshot(1, 1, ConfState((1, 2, 3)))
        assert storage.snapshot() is storage.visible_snapshot
        with pytest.raises(EntriesNotInMemory):
            storage.entries(2, 9, UNLIMITED)
        with pytest.raises(SnapshotNotReady):
            storage.snapshot()
        assert storage.missed == 2
        await storage.fetch(2, bytes_max=1 << 20)
        assert storage.entries(2, 9, UNLIMITED) == ENTRIES[1:2]
        for _ in range(30):
            storage.tick()
        with pytest.raises(EntriesNotInMemory):
            storage.entries(2, 9, UNLIMITED)
        await log.close()

    run(scenario())
