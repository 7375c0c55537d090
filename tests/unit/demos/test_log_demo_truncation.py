"""The demo's truncation, with a leader that changes in the middle."""

from typing import Any, cast

import msgspec
from tests.kits.running import run

from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnTruncated
from raftwood.logservice.log_rules import LogShardInfo
from raftwood.logservice.wire import ShardInfo
from raftwood_demos.logservice import truncate_half

BEFORE = ShardInfo(
    shard=1,
    leader=1,
    term=1,
    epoch=1,
    voters=(1, 2, 3),
    learners=(),
    log=LogShardInfo(1, 101, 0, 0, 0, 0, 0, 0),
    latest_lsn=100,
    log_bytes=1000,
    snapshots=(40, 80),
    record_bytes_max=1000,
    addresses={},
)


class Client:
    """Of a shard whose leader is the next of `leaders` at each look, the last one for ever."""

    def __init__(self, *leaders: ShardInfo) -> None:
        self._leaders = list(leaders)
        self.truncated: list[int] = []

    async def info(self) -> ShardInfo:
        return self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]

    async def truncate(self, lsn: int) -> None:
        self.truncated.append(lsn)

    async def read(self, _: int) -> None:
        raise LsnTruncated("truncated", first=max(self.truncated) + 1, next=101)


async def _read(_: AsyncLogClient, *, until: int) -> None:
    assert until


def _truncated(*leaders: ShardInfo) -> tuple[Any, list[int]]:
    client = Client(*leaders)
    return run(truncate_half(cast("AsyncLogClient", client), _read)), client.truncated


def test_one_leader_frees_what_it_was_told_to() -> None:
    found, truncated = _truncated(BEFORE, msgspec.structs.replace(BEFORE, log_bytes=600))
    assert truncated == [40]
    assert (found.truncated_lsn, found.first_lsn) == (40, 41)
    assert (found.bytes_before, found.bytes_after) == (1000, 600)


def test_a_new_leader_that_has_freed_already_is_not_waited_for() -> None:
    after = msgspec.structs.replace(BEFORE, leader=2, log_bytes=700, snapshots=(30, 70))
    found, truncated = _truncated(BEFORE, after)
    assert truncated == [40]
    assert (found.truncated_lsn, found.bytes_before, found.bytes_after) == (40, 1000, 700)


def test_a_new_leader_is_told_of_a_snapshot_of_its_own() -> None:
    other = msgspec.structs.replace(BEFORE, leader=2, snapshots=(45,))
    freed = msgspec.structs.replace(other, log_bytes=500)
    found, truncated = _truncated(BEFORE, other, other, other, freed)
    assert truncated == [40, 45]
    assert (found.truncated_lsn, found.bytes_after) == (45, 500)
