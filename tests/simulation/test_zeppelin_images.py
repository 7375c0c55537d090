"""Crash images of a node of Zeppelin, and mutants that they must catch."""

from collections.abc import Callable
from typing import Any

import pytest

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.disk.segment_log import DropGroup, State, TruncateHead
from raftwood.zeppelin.node import node_store, partition_engine, stored_partition
from raftwood.zeppelin.node.cutting import cut_binlog
from raftwood.zeppelin.node.engine_home import (
    VERSION,
    EngineHome,
    Held,
    encode_held,
    group_of,
)
from raftwood.zeppelin.node.partition_engine import PartitionEngine
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.node.values import encode_value
from tests.kits.disk.images import Broken, ForgetfulFiles
from tests.kits.zeppelin.images import NodeImages

IMAGES = 1_500
SHARES = 5
UNFIT = "the engine ends at record"
OLDER = "as it never was, or without what was acked"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SHARES))
def test_a_node_comes_back_from_every_crash_image(seed: int) -> None:
    assert NodeImages(seed).check(limit=IMAGES // SHARES) == IMAGES // SHARES


def _is_caught(reason: str, make: Callable[[int], NodeImages] = NodeImages) -> None:
    """Some image shows what the bug leads to; any other failure proves nothing."""
    others: list[str] = []
    for seed in range(6):
        try:
            make(seed).check(limit=150)
        except Broken as error:
            if reason in str(error):
                return
            others.append(str(error))
    pytest.fail(f"no image showed the planted bug; other failures: {others}")


class _NoSync(ForgetfulFiles):
    @staticmethod
    def forgotten(operation: Operation) -> bool:
        return isinstance(operation, seam.DataSync) and operation.path.endswith(".segment")


@pytest.mark.slow
def test_a_binlog_that_is_not_synced_is_caught() -> None:
    _is_caught("which it was not told", lambda seed: NodeImages(seed, _NoSync))


@pytest.mark.slow
def test_an_engine_that_is_written_before_the_sync_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def written(self: StoredPartition, sequence: int) -> None:
        self.written_sequence = sequence
        self._tell()
        synced, self.synced_sequence = self.synced_sequence, sequence
        self.apply_some(1_000_000)
        self.synced_sequence = synced

    monkeypatch.setattr(StoredPartition, "written", written)
    _is_caught(UNFIT)


@pytest.mark.slow
def test_an_ack_before_the_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(self: StoredPartition, sequence: int) -> None:
        self.written_sequence = self.synced_sequence = sequence
        self._tell()

    monkeypatch.setattr(StoredPartition, "written", written)
    _is_caught(OLDER)


@pytest.mark.slow
def test_a_flush_that_nobody_waits_for_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def flush(self: PartitionEngine) -> None:
        self.durable_sequence = self.state.sequence

    monkeypatch.setattr(PartitionEngine, "flush", flush)
    _is_caught(UNFIT)


@pytest.mark.slow
def test_a_purge_of_what_the_engine_has_not_got_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    purge = StoredPartition.purge

    async def purge_all(self: StoredPartition, *, before: int) -> None:
        durable, self.engine.durable_sequence = self.engine.durable_sequence, 1 << 40
        await purge(self, before=before)
        self.engine.durable_sequence = durable

    monkeypatch.setattr(StoredPartition, "purge", purge_all)
    _is_caught(UNFIT)


@pytest.mark.slow
def test_a_relative_expiry_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def relative(data: bytes, expires_ms: int) -> bytes:
        return encode_value(data, expires_ms and expires_ms + 1_000)

    monkeypatch.setattr(partition_engine, "encode_value", relative)
    _is_caught(OLDER)


@pytest.mark.slow
def test_a_dropped_partition_that_comes_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(_: int) -> Any:
        return node_store._own_state(1, 1)

    monkeypatch.setattr(node_store, "DropGroup", keep)
    _is_caught("which it was not told")


@pytest.mark.slow
def test_a_binlog_that_is_cut_before_the_engine_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cut_later(*_: object, **__: object) -> None: ...

    async def rewind(self: StoredPartition, *, after: int, **others: Any) -> None:
        await self.settle()
        await cut_binlog(self._binlog.log, self._group, after=after)
        await honest(self, after=after, **others)

    honest = StoredPartition.rewind
    monkeypatch.setattr(stored_partition, "cut_binlog", cut_later)
    monkeypatch.setattr(StoredPartition, "rewind", rewind)
    _is_caught(OLDER)


@pytest.mark.slow
def test_a_copy_that_takes_over_in_two_steps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def move(self: EngineHome, folder: str, *, sequence: int) -> None:
        group = group_of(self.partition)
        self.held = Held(VERSION, self.held.table, folder.rpartition("/")[2])
        state = State(group, encode_held(self.held))
        await self._log.commit(state)
        await self._log.commit(DropGroup(group), state, TruncateHead(group, sequence))

    monkeypatch.setattr(EngineHome, "move", move)
    _is_caught(UNFIT)
