"""Crash images of a node of Zeppelin, and mutants that they must catch."""

from typing import Any

import msgspec
import pytest

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.base.seams import Mutation
from raftwood.disk.segment_log import DropGroup, SetState, TruncateHead
from raftwood.zeppelin.node import engine as engine_module
from raftwood.zeppelin.node import store as store_module
from raftwood.zeppelin.node import stored_partition
from raftwood.zeppelin.node.binlog import cut_binlog
from raftwood.zeppelin.node.engine import EngineState, PartitionEngine, encode_value
from raftwood.zeppelin.node.engine_folders import (
    VERSION,
    EngineFolders,
    HeldEngine,
    encode_held,
    group_of,
)
from raftwood.zeppelin.node.stored_partition import StoredPartition
from tests.kits.disk.images import ForgetfulFiles
from tests.kits.floors import IMAGES, SHARES
from tests.kits.models import Mutant, replaced, together
from tests.kits.zeppelin.images import NodeImages
from tests.kits.zeppelin.split_images import SplitImages

UNFIT = "the engine ends at record"
OLDER = "as it never was, or without what was acked"
UNTOLD = "which it was not told"


@pytest.mark.parametrize("seed", range(SHARES))
def test_a_node_comes_back_from_every_crash_image(seed: int) -> None:
    assert NodeImages(seed).check(limit=IMAGES // SHARES) == IMAGES // SHARES


def test_a_split_is_there_or_can_be_made_again_in_every_crash_image() -> None:
    assert sum(SplitImages(seed).check(limit=IMAGES // SHARES) for seed in range(SHARES)) == IMAGES


class _NoSync(ForgetfulFiles):
    @staticmethod
    def forgotten(operation: Operation) -> bool:
        return isinstance(operation, seam.DataSync) and operation.path.endswith(".segment")


def _written_to_the_engine_too(store: StoredPartition, sequence: int) -> None:
    store.written_sequence = sequence
    store._tell()
    synced, store.synced_sequence = store.synced_sequence, sequence
    store.apply_some(1_000_000)
    store.synced_sequence = synced


def _written_is_synced(store: StoredPartition, sequence: int) -> None:
    store.written_sequence = store.synced_sequence = sequence
    store._tell()


async def _flush_nothing(engine: PartitionEngine) -> None:
    engine.durable_sequence = engine.state.sequence


async def _purge_all(store: StoredPartition, *, before: int) -> None:
    durable, store.engine.durable_sequence = store.engine.durable_sequence, 1 << 40
    await _purge(store, before=before)
    store.engine.durable_sequence = durable


def _encode_relative(data: bytes, expires_ms: int) -> bytes:
    return encode_value(data, expires_ms and expires_ms + 1_000)


def _put_in_two_steps(
    engine: PartitionEngine, mutations: list[Mutation], state: EngineState
) -> None:
    _put(engine, mutations, msgspec.structs.replace(state, keys=engine.state.keys))
    if state.keys != engine.state.keys:
        _put(engine, [], state)


async def _cut_later(*_: object, **__: object) -> None: ...


async def _rewind_the_binlog_first(store: StoredPartition, *, after: int, **others: Any) -> None:
    await store.settle()
    await cut_binlog(store._binlog.log, store._group, after=after)
    await _rewind(store, after=after, **others)


async def _move_in_two_steps(home: EngineFolders, folder: str, *, sequence: int) -> None:
    group = group_of(home.partition)
    home.held = HeldEngine(VERSION, home.held.table, folder.rpartition("/")[2])
    state = SetState(group, encode_held(home.held))
    await home._log.commit(state)
    await home._log.commit(DropGroup(group), state, TruncateHead(group, sequence))


def _check(seed: int) -> None:
    NodeImages(seed).check(limit=150)


_purge = StoredPartition.purge
_put = PartitionEngine._put
_rewind = StoredPartition.rewind
MUTANTS = {
    "a binlog is not synced": Mutant(
        lambda seed: NodeImages(seed, _NoSync).check(limit=150), harm=UNTOLD
    ),
    "an engine is written before the sync": Mutant(
        _check, replaced(StoredPartition, written=_written_to_the_engine_too), harm=UNFIT
    ),
    "an ack comes before the sync": Mutant(
        _check, replaced(StoredPartition, written=_written_is_synced), harm=OLDER
    ),
    "nobody waits for a flush": Mutant(
        _check, replaced(PartitionEngine, flush=_flush_nothing), harm=UNFIT
    ),
    "a purge of what the engine has not got": Mutant(
        _check, replaced(StoredPartition, purge=_purge_all), harm=UNFIT
    ),
    "a key is counted each time that it is written": Mutant(
        _check,
        replaced(PartitionEngine, _stored_end=lambda *_: None, _forget_looked_up=lambda *_: {}),
        harm="keys are told",
    ),
    "a count is written behind its keys": Mutant(
        _check, replaced(PartitionEngine, _put=_put_in_two_steps), harm="keys are told"
    ),
    "an ending stays when its key is written anew": Mutant(
        _check,
        replaced(engine_module, expires_of=lambda _: 0),
        harm="endings that are missing or wrong",
    ),
    "a relative expiry": Mutant(
        _check, replaced(engine_module, encode_value=_encode_relative), harm=OLDER
    ),
    "a dropped partition comes back": Mutant(
        _check,
        replaced(store_module, DropGroup=lambda _: store_module._own_state(1, 1)),
        harm=UNTOLD,
    ),
    "a binlog is cut before the engine": Mutant(
        _check,
        together(
            replaced(stored_partition, cut_binlog=_cut_later),
            replaced(StoredPartition, rewind=_rewind_the_binlog_first),
        ),
        harm=OLDER,
    ),
    "a copy takes over in two steps": Mutant(
        _check, replaced(EngineFolders, move=_move_in_two_steps), harm=UNFIT
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
