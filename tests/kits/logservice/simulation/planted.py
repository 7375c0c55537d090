"""Bugs planted in the log service on purpose, each as a patch for as long as a run takes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec

from raftwood.base.errors import Unavailable
from raftwood.logservice import log_state_machine
from raftwood.logservice.client import pipeline
from raftwood.logservice.client.pipeline import Pipeline
from raftwood.logservice.log_rules import LogState
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.logservice.producers import Producer
from raftwood.logservice.records import HEAD
from raftwood.logservice.server import truncation
from raftwood.logservice.server.shard_service import ShardService
from raftwood.logservice.truncation_rules import TruncationStep, next_step
from raftwood.raft.host.host import Host
from raftwood.raft.host.proposals import ProposalDone
from raftwood.raft.host.replica import Replica

# Appends


@contextmanager
def acks_before_applied() -> Iterator[None]:
    """An append is answered as soon as the leader has it."""
    original = Host.propose_batch

    def propose_batch(
        host: Host, group: int, payloads: Sequence[bytes], done: ProposalDone, **options: Any
    ) -> None:
        if group == 0 or len(payloads[0]) == HEAD.size + 8:
            original(host, group, payloads, done, **options)
            return
        replica = host._replica(group)
        waiting = sum(len(batch.entries) for batch in replica.proposals.queue)
        first = replica.node.raft.log.last_index + waiting + 1
        original(host, group, payloads, lambda _, __: None, **options)
        done([first + place for place in range(len(payloads))], None)

    with mock.patch.object(Host, "propose_batch", propose_batch):
        yield


@contextmanager
def writes_repetitions_again() -> Iterator[None]:
    original = LogState._repeated

    def repeated(
        state: LogState, index: int, producer: Producer, sequence: int, *, is_ordered: bool
    ) -> Any:
        if sequence <= producer.top:
            producer.runs.clear()
            return None
        return original(state, index, producer, sequence, is_ordered=is_ordered)

    with mock.patch.object(LogState, "_repeated", repeated):
        yield


@contextmanager
def takes_sequences_with_gaps() -> Iterator[None]:
    original = LogState._repeated

    def repeated(
        state: LogState, index: int, producer: Producer, sequence: int, *, is_ordered: bool
    ) -> Any:
        del is_ordered
        return original(state, index, producer, sequence, is_ordered=False)

    with mock.patch.object(LogState, "_repeated", repeated):
        yield


@contextmanager
def answers_repetitions_with_their_own_place() -> Iterator[None]:
    original = LogState._repeated

    def repeated(
        state: LogState, index: int, producer: Producer, sequence: int, *, is_ordered: bool
    ) -> Any:
        answer = original(state, index, producer, sequence, is_ordered=is_ordered)
        return index if isinstance(answer, int) else answer

    with mock.patch.object(LogState, "_repeated", repeated):
        yield


@contextmanager
def checks_the_lease_when_proposed() -> Iterator[None]:
    original = ShardService._check_append
    append = LogState._append

    def check_append(service: ShardService, shard: int, entries: list[bytes]) -> None:
        original(service, shard, entries)
        machine = service._host.machine(shard)
        assert isinstance(machine, LogStateMachine)
        holder = HEAD.unpack_from(entries[0])[5]
        if machine.state.holder not in (0, holder):
            raise machine.state._not_holder(holder)

    def append_by_anybody(
        state: LogState, index: int, name: bytes, sequence: int, _: int, *, is_ordered: bool
    ) -> Any:
        return append(state, index, name, sequence, state.holder, is_ordered=is_ordered)

    with (
        mock.patch.object(ShardService, "_check_append", check_append),
        mock.patch.object(LogState, "_append", append_by_anybody),
    ):
        yield


# The client


@contextmanager
def sends_again_as_another_producer() -> Iterator[None]:
    original = Pipeline._resend

    async def resend(client: Pipeline) -> bool:
        client._begin_producer()
        for append in [*client._sent, *client._queue]:
            _, flags, _, _, kind, holder = HEAD.unpack_from(append.entry)
            sequence = client._next_sequence
            head = HEAD.pack(1, flags, client._producer, sequence, kind, holder)
            append.entry = head + append.entry[HEAD.size :]
            append.sequence = append.sequence and sequence
            client._next_sequence += 1
        return await original(client)

    with mock.patch.object(Pipeline, "_resend", resend):
        yield


@contextmanager
def takes_silence_for_a_refusal() -> Iterator[None]:
    with mock.patch.object(pipeline, "_told", lambda _, error: Unavailable(error.message)):
        yield


@contextmanager
def takes_the_last_word_for_the_only_one() -> Iterator[None]:
    """A refusal is told as it is, also of a record that an earlier attempt may have written."""
    with mock.patch.object(pipeline, "_told", lambda _, error: type(error)(error.message)):
        yield


# Reading


@contextmanager
def reads_refused_entries() -> Iterator[None]:
    with mock.patch.object(LogState, "has_holes", return_value=False):
        yield


@contextmanager
def reads_without_asking_for_the_index() -> Iterator[None]:
    async def wait_to_read(host: Host, replica: Replica, timeout_ms: int) -> None:
        pass

    with mock.patch.object(Host, "_wait_to_read", wait_to_read):
        yield


@contextmanager
def wakes_nobody() -> Iterator[None]:
    with mock.patch.object(LogStateMachine, "_wake"):
        yield


# Truncation and snapshots


@contextmanager
def shows_the_snapshot_above_the_truncated_lsn() -> Iterator[None]:
    def greater(snapshots: Sequence[int], **given: int) -> TruncationStep:
        step = next_step(snapshots, **given)
        above = [index for index in snapshots if index > given["freeable"]]
        visible = above[0] if above and given["freeable"] else step.visible
        return msgspec.structs.replace(step, visible=visible, dropped=())

    with mock.patch.object(truncation, "next_step", greater):
        yield


@contextmanager
def cuts_to_the_applied_index() -> Iterator[None]:
    def applied(snapshots: Sequence[int], **given: int) -> TruncationStep:
        return next_step(snapshots, **(given | {"freeable": given["applied"]}))

    with mock.patch.object(truncation, "next_step", applied):
        yield


@contextmanager
def ignores_the_required_lsn() -> Iterator[None]:
    with mock.patch.object(LogState, "first_lsn", property(lambda state: state.truncated + 1)):
        yield


@contextmanager
def _stores_without(**left_out: Any) -> Iterator[None]:
    original = log_state_machine._stored

    def stored(state: LogState) -> Any:
        return msgspec.structs.replace(original(state), **left_out)

    with mock.patch.object(log_state_machine, "_stored", stored):
        yield


@contextmanager
def leaves_producers_out_of_snapshots() -> Iterator[None]:
    with _stores_without(producers=[]):
        yield


@contextmanager
def leaves_holes_out_of_snapshots() -> Iterator[None]:
    with _stores_without(holes=[]):
        yield


@contextmanager
def gives_the_last_timestamp_twice() -> Iterator[None]:
    original = LogState._take_timestamps

    def take(state: LogState, count: int) -> Any:
        answer = original(state, count)
        state.tso -= 1
        return answer

    with mock.patch.object(LogState, "_take_timestamps", take):
        yield
