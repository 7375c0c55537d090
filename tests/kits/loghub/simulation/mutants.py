"""Bugs planted in LogHub on purpose: a simulation that misses one of them proves nothing.

Each is run under the faults in which it shows, and names the check that sees it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from raftwood.base.errors import LogSealed
from raftwood.base.files import Buffer
from raftwood.base.position import Position
from raftwood.loghub.client import reader
from raftwood.loghub.client.producer_rules import ProducerRules, ShardLane
from raftwood.loghub.errors import ShardNotFound
from raftwood.loghub.model import Logstore, Shard, ShardStatus
from raftwood.loghub.server import catalog, retention, streams
from raftwood.loghub.server.catalog import LogstoreReconciler
from raftwood.loghub.server.retention import Retention
from raftwood.loghub.server.streams import Streams
from raftwood.loghub.shards import begin_split, finish_hand_overs
from raftwood.loghub.wire import Pulled
from raftwood.testing import SwarmProfile
from tests.kits.loghub.simulation.world import Plan, run_hub
from tests.kits.models import Mutant, replaced

_put_to = Streams._put_to
_append = Streams._append
_pull = Streams._pull

# Splits and merges


async def _seal_nothing(settling_: LogstoreReconciler, log: str) -> Position:
    """The parent's log takes what comes, after its end was written down."""
    return (await (await settling_._logs.open(log)).bounds()).next


async def _seal_after_the_end(settling_: LogstoreReconciler, log: str) -> Position:
    opened = await settling_._logs.open(log)
    end = (await opened.bounds()).next
    await opened.seal()
    return end


def _finish_by_one(logstore: Logstore, ends: Mapping[int, int]) -> Logstore:
    """A merge is over when one of the two has ended."""
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


def _begin_with_open_children(*arguments: Any, **options: Any) -> Logstore:
    logstore = begin_split(*arguments, **options)
    opened = [
        replace(each, status=ShardStatus.READWRITE)
        if each.status is ShardStatus.CREATING and each.parents
        else each
        for each in logstore.shards
    ]
    return replace(logstore, shards=tuple(opened))


# Puts


async def _put_as_nobody(
    hub: Streams,
    known: Logstore,
    number: int,
    pieces: Sequence[Buffer],
    _producer: bytes,
    _sequence: int,
) -> Any:
    """Every attempt is a new batch."""
    return await _put_to(hub, known, number, pieces, b"", 0)


async def _append_in_haste(hub: Streams, *arguments: Any) -> Position:
    """A log that does not answer is said to have ended: nothing was put."""
    try:
        async with asyncio.timeout(0.1):
            return await _append(hub, *arguments)
    except TimeoutError as error:
        raise LogSealed("it does not answer") from error


async def _known_shard(hub: Streams, known: Logstore, number: int) -> Shard:
    """A shard that is still being made, as far as a gateway has heard, is not there."""
    if known.shard(number) is None:
        known = await hub._catalog.logstore(known.project, known.name)
    shard = known.shard(number)
    if shard is None or shard not in known.visible():
        raise ShardNotFound(f"logstore {known.name} has no shard {number}")
    return shard


def _lost_and_routed_anew(rules: ProducerRules, lane: ShardLane, *, now: float) -> None:
    """After a lost answer, what was under way goes to where its keys belong now."""
    rules.readonly(lane)
    lane.is_sealed = False
    lane.failures += 1
    lane.retry_at = now + 0.05


# Pulls


async def _pull_to_the_end(hub: Streams, shard: Shard, *arguments: Any) -> Pulled:
    """A shard that is being split is over for whoever finds nothing there."""
    pulled = await _pull(hub, shard, *arguments)
    is_over = not pulled.batches and shard.status is ShardStatus.SEALING
    return replace(pulled, is_ended=pulled.is_ended or is_over)


def _startable_at_once(shards: Sequence[Shard], *, started: Any, done: Any) -> list[Shard]:  # noqa: ARG001
    return [each for each in shards if each.id not in started]


# Retention


async def _too_much(_: Retention, logstore: Logstore, __: Shard, bounds: Any) -> int:
    """Retention by bytes keeps as good as nothing."""
    return bounds.next if logstore.retained_bytes_max else 0


# Faults


def _running(plan: Plan, **every_s: float) -> Callable[[int], object]:
    return lambda seed: run_hub(seed, plan, profile=SwarmProfile(seed=seed, every_s=every_s))


_HASTY = Plan(faults_s=4.0, pause_s=0.05, reshard_every_s=0.5, timeout_ms=400, churners=0)
_calm = _running(Plan(faults_s=2.5, pause_s=0.04, reshard_every_s=0.3, churners=0))
_freeing = _running(
    Plan(faults_s=3.0, pause_s=0.05, reshard_every_s=2.0, retained_bytes_max=400, churners=0)
)
_dying = _running(
    Plan(faults_s=3.0, reshard_every_s=0.3, crash_share=0.1, churners=1, settling_s=20.0)
)
_on_a_bad_network = _running(_HASTY, stall=0.3, reset=0.15)
_with_crashes = _running(_HASTY, kill=1.0, pause=1.0)
_with_pauses = _running(_HASTY, pause=0.3, reset=0.3)
"""A gateway that stands still stores what it was sent, once it goes on."""
_with_stalls = _running(
    Plan(faults_s=3.0, gateways=3, pause_s=0.04, reshard_every_s=0.3, churners=0),
    stall=0.1,
    reset=0.15,
)
"""A gateway hears of what others did later than its clients do."""

MUTANTS = {
    "ends a shard before its end": Mutant(
        _calm,
        replaced(Streams, _pull=_pull_to_the_end),
        harm="said to be over|not answered|after number",
    ),
    "forgets the producer": Mutant(
        _on_a_bad_network, replaced(Streams, _put_to=_put_as_nobody), first=4, harm="exactly once"
    ),
    "frees more than it may": Mutant(
        _freeing, replaced(Retention, _too_much=_too_much), first=17, harm="may keep"
    ),
    "hands over without a seal": Mutant(
        _calm, replaced(LogstoreReconciler, _seal=_seal_nothing), harm="behind|is not read|given up"
    ),
    "ignores the sibling": Mutant(
        _calm,
        replaced(catalog, finish_hand_overs=_finish_by_one),
        harm="before its parent has ended|do not cover",
    ),
    "leaves things half-done": Mutant(
        # Nobody finishes what a gateway that died has begun, unless it is in somebody's way.
        _dying,
        replaced(retention, is_settled=lambda _: True),
        harm="half-done|not answered",
    ),
    "opens the children at once": Mutant(
        _calm,
        replaced(streams, begin_split=_begin_with_open_children),
        harm="before its parent has ended|do not",
    ),
    "reads children before their parents": Mutant(
        _calm,
        replaced(reader, startable=_startable_at_once),
        harm="of its key",
        first=1,
    ),
    "sends again as another batch": Mutant(
        _with_pauses, replaced(ProducerRules, lost=_lost_and_routed_anew), harm="exactly once"
    ),
    "takes silence for an end": Mutant(
        _with_crashes,
        replaced(Streams, _append=_append_in_haste),
        first=23,
        harm="exactly once|said not to be stored",
    ),
    "takes the end before the seal": Mutant(
        _calm,
        replaced(LogstoreReconciler, _seal=_seal_after_the_end),
        harm="behind|is not read|acked and|given up: InvalidCursor",
        first=1,
    ),
    "trusts what it knew of new shards": Mutant(
        _with_stalls, replaced(Streams, _shard=_known_shard), first=26, harm="which is there"
    ),
}
