"""Bugs planted in the log service on purpose: a simulation that misses one of them proves nothing.

Each names the faults under which it shows, and what is said by the check that sees it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from raftwood.base.errors import Unavailable
from raftwood.logservice import log_state_machine
from raftwood.logservice.client import append_pipeline
from raftwood.logservice.client.append_pipeline import AppendPipeline
from raftwood.logservice.log_rules import LogShardState, ShardProducer
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.logservice.records import HEAD
from raftwood.logservice.server import truncation
from raftwood.logservice.server.shard_service import ShardService
from raftwood.logservice.server.truncation import TruncationStep, next_step
from raftwood.raft.node_host import NodeHost
from raftwood.raft.requests import ProposalDone
from raftwood.testing import NetworkProfile, SwarmProfile
from tests.kits.logservice.simulation.world import Plan, run_logs
from tests.kits.models import Mutant, Plant, replaced, together
from tests.kits.raft.hosts.mutants import saves_the_membership_before_the_last_change

_append = LogShardState._append
_check_append = ShardService._check_append
_propose_batch = NodeHost.propose_batch
_repeated = LogShardState._repeated
_resend = AppendPipeline._resend
_stored = log_state_machine._stored
_take_timestamps = LogShardState._take_timestamps

# Appends


def _propose_and_ack(
    host: NodeHost, group: int, payloads: Sequence[bytes], done: ProposalDone, **options: Any
) -> None:
    """An append is answered as soon as the leader has it."""
    if group == 0 or len(payloads[0]) == HEAD.size + 8:
        _propose_batch(host, group, payloads, done, **options)
        return
    replica = host._replica(group)
    waiting = sum(len(batch.entries) for batch in replica.proposals.queue)
    first = replica.node.raft.log.last_index + waiting + 1
    _propose_batch(host, group, payloads, lambda _, __: None, **options)
    done([first + place for place in range(len(payloads))], None)


def _write_again(
    state: LogShardState, index: int, producer: ShardProducer, sequence: int, *, is_ordered: bool
) -> Any:
    if sequence <= producer.top:
        producer.runs.clear()
        return None
    return _repeated(state, index, producer, sequence, is_ordered=is_ordered)


def _take_gaps(
    state: LogShardState, index: int, producer: ShardProducer, sequence: int, **_: bool
) -> Any:
    return _repeated(state, index, producer, sequence, is_ordered=False)


def _answer_with_its_own_place(
    state: LogShardState, index: int, producer: ShardProducer, sequence: int, *, is_ordered: bool
) -> Any:
    answer = _repeated(state, index, producer, sequence, is_ordered=is_ordered)
    return index if isinstance(answer, int) else answer


def _check_the_lease_too(service: ShardService, shard: int, entries: list[bytes]) -> None:
    _check_append(service, shard, entries)
    machine = service._host.machine(shard)
    assert isinstance(machine, LogStateMachine)
    holder = HEAD.unpack_from(entries[0])[5]
    if machine.state.holder not in (0, holder):
        raise machine.state._not_holder(holder)


def _append_by_anybody(
    state: LogShardState, index: int, name: bytes, sequence: int, _: int, *, is_ordered: bool
) -> Any:
    return _append(state, index, name, sequence, state.holder, is_ordered=is_ordered)


# The client


async def _resend_as_another(client: AppendPipeline) -> bool:
    client._begin_producer()
    for append in [*client._sent, *client._queue]:
        _, flags, _, _, kind, holder = HEAD.unpack_from(append.entry)
        sequence = client._next_sequence
        head = HEAD.pack(1, flags, client._producer, sequence, kind, holder)
        append.entry = head + append.entry[HEAD.size :]
        append.sequence = append.sequence and sequence
        client._next_sequence += 1
    return await _resend(client)


# Reading


async def _wait_for_nothing(*_: object) -> None:
    pass


# Truncation and snapshots


def _show_the_snapshot_above(snapshots: Sequence[int], **given: int) -> TruncationStep:
    step = next_step(snapshots, **given)
    above = [index for index in snapshots if index > given["freeable"]]
    visible = above[0] if above and given["freeable"] else step.visible
    return msgspec.structs.replace(step, visible=visible, dropped=())


def _cut_to_applied(snapshots: Sequence[int], **given: int) -> TruncationStep:
    return next_step(snapshots, **(given | {"freeable": given["applied"]}))


def _stored_without(**left_out: Any) -> Plant:
    def stored(state: LogShardState) -> Any:
        return msgspec.structs.replace(_stored(state), **left_out)

    return replaced(log_state_machine, _stored=stored)


def _take_one_twice(state: LogShardState, count: int) -> Any:
    answer = _take_timestamps(state, count)
    state.tso -= 1
    return answer


# The weather


def _partitions(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"partition": 1.0})


def _crashes(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.5, "power_loss": 2.0})


def _network(seed: int) -> SwarmProfile:
    every_s = {"kill": 4.0, "stall": 0.5, "reset": 1.0, "pause": 2.0}
    return SwarmProfile(seed=seed, every_s=every_s)


def _pauses(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"pause": 0.8, "stall": 0.5})


def _far(seed: int) -> SwarmProfile:
    """Much is proposed before anything of it is applied."""
    return SwarmProfile(seed=seed, network=NetworkProfile(delay_s=(0.02, 0.1)))


def _calm(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed)


def _weather(
    profile: Callable[[int], SwarmProfile], *, faults_s: float = 8.0, **plan: Any
) -> Callable[[int], object]:
    chosen = Plan(faults_s=faults_s, **plan)
    return lambda seed: run_logs(seed, chosen, profile=profile(seed))


_IN_CALM = _weather(_calm)
_IN_CALM_WITH_LEASES = _weather(_calm, has_leases=True)
_WITH_MANY_CUTS = _weather(_calm, cut_every_s=0.4)
_IN_CRASHES = _weather(_crashes)
_ON_A_BAD_NETWORK = _weather(_network)
_IN_HASTE = _weather(_network, timeout_ms=500)

MUTANTS = {
    "acks before applied": Mutant(
        _weather(_partitions),
        replaced(NodeHost, propose_batch=_propose_and_ack),
        first=3,
        harm="acked and lost|one order|exactly once",
    ),
    "answers repetitions with their own place": Mutant(
        _ON_A_BAD_NETWORK,
        replaced(LogShardState, _repeated=_answer_with_its_own_place),
        first=9,
        harm="exactly once|acked and lost",
    ),
    "checks the lease when proposed": Mutant(
        _weather(_far, has_leases=True),
        together(
            replaced(ShardService, _check_append=_check_the_lease_too),
            replaced(LogShardState, _append=_append_by_anybody),
        ),
        first=9,
        harm="without the lease",
    ),
    "cuts to the applied index": Mutant(
        _IN_CALM,
        replaced(truncation, next_step=_cut_to_applied),
        first=1,
        harm="failed|can be read",
    ),
    "gives the last timestamp twice": Mutant(
        _weather(_calm, pause_s=0.1),
        replaced(LogShardState, _take_timestamps=_take_one_twice),
        first=3,
        harm="timestamps given twice",
    ),
    "ignores the required LSN": Mutant(
        _WITH_MANY_CUTS,
        replaced(LogShardState, first_lsn=property(lambda state: state.truncated + 1)),
        first=1,
        harm="is required",
    ),
    "leaves holes out of snapshots": Mutant(
        _weather(_crashes, has_leases=True),
        _stored_without(holes=[]),
        harm="nothing invented|differ|without the lease",
    ),
    "leaves producers out of snapshots": Mutant(
        _IN_CRASHES, _stored_without(producers=[]), first=3, harm="differ"
    ),
    "reads refused entries": Mutant(
        _IN_CALM_WITH_LEASES,
        replaced(LogShardState, has_holes=lambda *_: False),
        first=1,
        harm="are others",
    ),
    "reads without asking for the index": Mutant(
        _weather(_pauses),
        replaced(NodeHost, _wait_to_read=_wait_for_nothing),
        first=3,
        harm="no stale reads|is truncated after",
    ),
    "saves the membership before the last change": Mutant(
        _weather(_crashes, faults_s=15.0, is_replaced=True, pause_s=0.5),
        saves_the_membership_before_the_last_change,
    ),
    "sends again as another producer": Mutant(
        _ON_A_BAD_NETWORK,
        replaced(AppendPipeline, _resend=_resend_as_another),
        first=3,
        harm="exactly once",
    ),
    "shows the snapshot above the truncated LSN": Mutant(
        _WITH_MANY_CUTS,
        replaced(truncation, next_step=_show_the_snapshot_above),
        harm="failed|can be read",
    ),
    "takes sequences with gaps": Mutant(
        _weather(_network, pause_s=0.05),
        replaced(LogShardState, _repeated=_take_gaps),
        first=2,
        harm="calls out of order",
    ),
    "takes silence for a refusal": Mutant(
        _IN_HASTE,
        replaced(append_pipeline, _told=lambda _, error: Unavailable(error.message)),
        harm="nothing invented",
    ),
    # A refusal is told as it is, also of a record that an earlier attempt may have written.
    "takes the last word for the only one": Mutant(
        _IN_HASTE,
        replaced(append_pipeline, _told=lambda _, error: type(error)(error.message)),
        first=3,
        harm="nothing invented",
    ),
    "wakes nobody": Mutant(
        _IN_CALM, replaced(LogStateMachine, _wake=lambda *_: None), first=3, harm="slept on"
    ),
    "writes repetitions again": Mutant(
        _ON_A_BAD_NETWORK,
        replaced(LogShardState, _repeated=_write_again),
        first=1,
        harm="exactly once",
    ),
}
