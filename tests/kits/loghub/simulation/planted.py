"""Bugs planted in LogHub on purpose, each as a patch for as long as a run takes."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from msgspec.structs import replace

from raftwood.base.errors import LogSealed
from raftwood.base.position import Position
from raftwood.loghub.client import pulling
from raftwood.loghub.client.lanes import Lane
from raftwood.loghub.client.producer_rules import ProducerRules
from raftwood.loghub.errors import ShardNotFound
from raftwood.loghub.model import Logstore, Shard, ShardStatus
from raftwood.loghub.server import retention, settling, streams
from raftwood.loghub.server.retention import Retention
from raftwood.loghub.server.settling import Settling
from raftwood.loghub.server.streams import Streams
from raftwood.loghub.shard_rules import begin_split, finish_hand_overs
from raftwood.loghub.wire import Pulled

# Splits and merges


@contextmanager
def hands_over_without_a_seal() -> Iterator[None]:
    """The parent's log takes what comes, after its end was written down."""

    async def seal(settling_: Settling, log: str) -> Position:
        return (await (await settling_._logs.open(log)).bounds()).next

    with mock.patch.object(Settling, "_seal", seal):
        yield


@contextmanager
def takes_the_end_before_the_seal() -> Iterator[None]:
    async def seal(settling_: Settling, log: str) -> Position:
        opened = await settling_._logs.open(log)
        end = (await opened.bounds()).next
        await opened.seal()
        return end

    with mock.patch.object(Settling, "_seal", seal):
        yield


@contextmanager
def ignores_the_sibling() -> Iterator[None]:
    """A merge is over when one of the two has ended."""

    def finish(logstore: Logstore, ends: Mapping[int, int]) -> Logstore:
        first = dict(list(ends.items())[:1])
        if not first:
            return finish_hand_overs(logstore, ends)
        alone = [
            replace(
                each,
                children=each.children if each.id in first else (),
                parents=tuple(parent for parent in each.parents if parent in first),
            )
            for each in logstore.shards
        ]
        done = finish_hand_overs(replace(logstore, shards=tuple(alone)), first)
        known = {each.id: each for each in logstore.shards}
        restored = [
            replace(each, children=known[each.id].children, parents=known[each.id].parents)
            for each in done.shards
        ]
        return replace(done, shards=tuple(restored))

    with mock.patch.object(settling, "finish_hand_overs", finish):
        yield


@contextmanager
def opens_the_children_at_once() -> Iterator[None]:
    def begin(*arguments: Any, **options: Any) -> Logstore:
        logstore = begin_split(*arguments, **options)
        opened = [
            replace(each, status=ShardStatus.READWRITE)
            if each.status is ShardStatus.CREATING and each.parents
            else each
            for each in logstore.shards
        ]
        return replace(logstore, shards=tuple(opened))

    with mock.patch.object(streams, "begin_split", begin):
        yield


@contextmanager
def leaves_things_half_done() -> Iterator[None]:
    """Nobody finishes what a gateway that died has begun, unless it is in somebody's way."""
    with mock.patch.object(retention, "is_settled", return_value=True):
        yield


# Puts


@contextmanager
def forgets_the_producer() -> Iterator[None]:
    """Every attempt is a new batch."""
    put_to = Streams._put_to

    async def put(
        hub: Streams, known: Logstore, number: int, data: bytes, producer: str, sequence: int
    ) -> Any:
        del producer, sequence
        return await put_to(hub, known, number, data, "", 0)

    with mock.patch.object(Streams, "_put_to", put):
        yield


@contextmanager
def takes_silence_for_an_end() -> Iterator[None]:
    """A log that does not answer is said to have ended: nothing was put."""
    append = Streams._append

    async def hasty(hub: Streams, *arguments: Any) -> Position:
        try:
            async with asyncio.timeout(0.1):
                return await append(hub, *arguments)
        except TimeoutError as error:
            raise LogSealed("it does not answer") from error

    with mock.patch.object(Streams, "_append", hasty):
        yield


@contextmanager
def trusts_what_it_knew_of_new_shards() -> Iterator[None]:
    """A shard that is still being made, as far as a gateway has heard, is not there."""

    async def known_shard(hub: Streams, known: Logstore, number: int) -> Shard:
        if known.shard(number) is None:
            known = await hub._catalog.logstore(known.project, known.name)
        shard = known.shard(number)
        if shard is None or shard not in known.visible():
            raise ShardNotFound(f"logstore {known.name} has no shard {number}")
        return shard

    with mock.patch.object(Streams, "_shard", known_shard):
        yield


@contextmanager
def sends_again_as_another_batch() -> Iterator[None]:
    """After a lost answer, what was under way goes to where its keys belong now."""

    def lost(rules: ProducerRules, lane: Lane, *, now: float) -> None:
        rules.readonly(lane)
        lane.is_sealed = False
        lane.attempts += 1
        lane.retry_at = now + 0.05

    with mock.patch.object(ProducerRules, "lost", lost):
        yield


# Pulls


@contextmanager
def ends_a_shard_before_its_end() -> Iterator[None]:
    """A shard that is being split is over for whoever finds nothing there."""
    pull = Streams._pull

    async def hasty(hub: Streams, shard: Shard, *arguments: Any) -> Pulled:
        pulled = await pull(hub, shard, *arguments)
        is_over = not pulled.batches and shard.status is ShardStatus.SEALING
        return replace(pulled, is_ended=pulled.is_ended or is_over)

    with mock.patch.object(Streams, "_pull", hasty):
        yield


@contextmanager
def reads_children_before_their_parents() -> Iterator[None]:
    def all_at_once(shards: Sequence[Shard], *, started: Any, done: Any) -> list[Shard]:
        del done
        return [each for each in shards if each.id not in started]

    with mock.patch.object(pulling, "startable", all_at_once):
        yield


# Retention


@contextmanager
def frees_more_than_it_may() -> Iterator[None]:
    """Retention by bytes keeps as good as nothing."""

    async def too_much(_: Retention, logstore: Logstore, __: Shard, bounds: Any) -> int:
        return bounds.next if logstore.retained_bytes_max else 0

    with mock.patch.object(Retention, "_too_much", too_much):
        yield
