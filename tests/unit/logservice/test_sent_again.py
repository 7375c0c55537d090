"""Records that are sent again while a slow disk keeps the log from applying what came first."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.logservice.errors import SequenceGap
from raftwood.logservice.records import encode_user_entry
from raftwood.testing import DiskProfile
from tests.kits.logservice.log_cluster import SERVICE, LogCluster, run_log_cluster

_SETTINGS = msgspec.structs.replace(SERVICE, snapshot_entries=10_000)
_PRODUCER = b"p" * 16


def entries(*sequences: int, is_ordered: bool = True) -> list[bytes]:
    return [
        encode_user_entry(
            b"%d" % each, holder=0, producer=_PRODUCER, sequence=each, is_ordered=is_ordered
        )
        for each in sequences
    ]


class _Sent:
    """Batches that are given to the leader while its log applies nothing."""

    def __init__(self, cluster: LogCluster, leader: int) -> None:
        self._cluster = cluster
        self._host = cluster.stores[leader].host
        self._answers: list[asyncio.Future[list[Any]]] = []

    async def send(self, batch: Sequence[bytes], *, again: bool = False) -> None:
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        def done(results: list[Any] | None, error: RaftwoodError | None) -> None:
            answer.set_result(results if results is not None else [error])

        self._answers.append(answer)
        self._host.propose_batch(1, batch, done, again=again)
        await asyncio.sleep(0.01)

    async def answers(self) -> list[list[Any]]:
        return [
            [each if isinstance(each, int) else type(each) for each in await answer]
            for answer in self._answers
        ]

    @property
    def length(self) -> int:
        return self._host.applied(1)


def run(*sent: tuple[list[bytes], bool]) -> tuple[list[list[Any]], int]:
    """What comes of batches, each perhaps sent again; and by how much the log grew."""
    found: list[tuple[list[list[Any]], int]] = []

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        leader = await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            await client.append(b"the first one")
        for machine in cluster.machines.values():
            machine.disk.profile = DiskProfile(sync_s=(0.3, 0.3))
        sending = _Sent(cluster, leader)
        before = sending.length
        for batch, again in sent:
            await sending.send(batch, again=again)
        answers = await sending.answers()
        found.append((answers, sending.length - before))

    run_log_cluster(scenario, service=_SETTINGS)
    return found[0]


def test_what_the_log_holds_is_not_proposed_again() -> None:
    (first, again), growth = run((entries(1, 2), False), (entries(1, 2, 3), True))
    assert again[:2] == first
    assert all(isinstance(each, int) for each in again)
    assert growth == 3


def test_what_came_before_the_one_in_front_of_it_does_not_count() -> None:
    # The first batch was refused for want of room; the one behind it found some.
    (second, again), growth = run((entries(3, 4), False), (entries(1, 2, 3, 4), True))
    assert second == [SequenceGap, SequenceGap]
    assert all(isinstance(each, int) for each in again)
    assert growth == 6


def test_nor_does_it_when_it_is_sent_again_alone() -> None:
    sent = ((entries(2, 3), False), (entries(1), False), (entries(2, 3), True))
    (early, first, again), growth = run(*sent)
    assert early == [SequenceGap, SequenceGap]
    assert [*first, *again] == sorted([*first, *again])
    assert growth == 5


def test_records_without_an_order_stand_in_the_log_once_whatever_comes_before_them() -> None:
    sent = ((entries(3, is_ordered=False), False), (entries(2, 3, is_ordered=False), True))
    (first, again), growth = run(*sent)
    assert again[1:] == first
    assert growth == 2
