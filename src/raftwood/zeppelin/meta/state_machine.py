"""`MetaMachine`: Zeppelin's meta server as a raft group replicates it, over `MetaState`.

What is replicated is the topology alone. What nodes tell in heartbeats is kept by the leader's
machine, in its `Reign`, which begins anew with each term: heartbeats are questions, answered after
a quorum has confirmed that this store still leads. So each lease that was ever given was given
before any later leader began, and that one gives all of them the time to end before it judges.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from raftwood.base.errors import (
    Conflict,
    NotFound,
    NotLeader,
    RaftwoodError,
    StoreDamaged,
    UnsupportedVersion,
)
from raftwood.raft.state_machine import Command, ExtraFiles, Stopped
from raftwood.raft.whole_snapshot import gathered, in_chunks
from raftwood.zeppelin.meta.changes import (
    Applied,
    Change,
    decode_batch,
    encode_applied,
    failed,
)
from raftwood.zeppelin.meta.heard import Heartbeat, Moment, Reign
from raftwood.zeppelin.meta.planning import plan
from raftwood.zeppelin.meta.queries import (
    Answer,
    Behind,
    Changed,
    Changes,
    Lease,
    ListReports,
    Nodes,
    Query,
    Refused,
    Report,
    Reports,
    decode_query,
    encode_answer,
)
from raftwood.zeppelin.meta.rules import MetaState
from raftwood.zeppelin.meta.settings import ZeppelinMetaSettings
from raftwood.zeppelin.model import NodeId, Topology

_MAGIC: Final = b"RWZM"
FORMAT_VERSION: Final = 1
_DAMAGED: Final = (
    "a snapshot of Zeppelin's meta server cannot be read: remove this replica and add it anew"
)
_encoder = msgspec.msgpack.Encoder()
_topologies: msgspec.msgpack.Decoder[Topology] = msgspec.msgpack.Decoder(Topology)


class MetaMachine:
    """Commands and questions are bytes, and so are results and answers."""

    def __init__(
        self,
        settings: ZeppelinMetaSettings,
        *,
        now_ms: Callable[[], int],
        term: Callable[[], int | None],
    ) -> None:
        """`now_ms` is of the store's monotonic clock; `term` is that in which it leads, if it does.

        Both concern what the leader heard; the topology depends on commands alone.
        """
        self._settings = settings
        self._now_ms = now_ms
        self._term = term
        self._state = MetaState()
        self._reign: Reign | None = None
        self._planned_ms = 0
        self._news = asyncio.Event()
        """Set, and replaced, when somebody who waits may have an answer."""
        self._is_plan_due = asyncio.Event()
        self._is_closed = False

    @property
    def topology(self) -> Topology:
        return self._state.topology

    # Commands

    def update(self, commands: Sequence[Command]) -> list[bytes]:
        before = self._state.topology
        results = [self._apply(command.payload) for command in commands]
        if self._state.topology is not before:
            self._wake()
        return results

    def _apply(self, payload: bytes) -> bytes:
        try:
            applied = self._state.apply(decode_batch(payload))
        except RaftwoodError as error:
            applied = Applied(self._state.topology.epoch, (failed(error),))
        return encode_applied(applied)

    # Questions

    def lookup(self, query: bytes) -> bytes | RaftwoodError:
        """A heartbeat is taken in besides: it changes nothing that is replicated."""
        try:
            return encode_answer(self._answer(decode_query(query)))
        except NotLeader as error:
            return error  # for the client, which looks for the leader then
        except RaftwoodError as error:
            return encode_answer(Refused(failed(error)))

    def _answer(self, query: Query) -> Answer:
        match query:
            case Changes(after_epoch):
                return Changed(self._state.delta(after_epoch))
            case Heartbeat():
                return self._hear(query)
            case Behind(epoch):
                return Nodes(self._behind(self._current_reign(), epoch))
            case ListReports():
                return self._reports(self._current_reign())

    def _current_reign(self) -> Reign:
        term = self._term()
        if term is None:
            self._reign = None
            raise NotLeader("this store does not lead Zeppelin's meta server")
        now_ms = self._now_ms()
        if self._reign is None or self._reign.term != term:
            self._reign = Reign(term, now_ms)
        self._reign.note(self._state.topology, now_ms)
        return self._reign

    def _hear(self, heartbeat: Heartbeat) -> Lease:
        reign = self._current_reign()
        known = self._state.topology.nodes.get(heartbeat.node)
        if known is None:
            raise NotFound(f"there is no node {heartbeat.node!r}: register it first")
        if known.run != heartbeat.run:
            raise Conflict(f"node {heartbeat.node!r} runs as {known.run}: register it anew")
        applied_before = reign.nodes[heartbeat.node].applied_epoch
        now_ms = self._now_ms()
        counts = reign.hear(heartbeat, now_ms)
        if counts and heartbeat.applied_epoch != applied_before:
            self._wake()
        if reign.has_news_of_stuck:
            self._is_plan_due.set()
        settings = self._settings
        lease_ms = settings.lease_ms if counts and known.is_up else 0
        delta = self._state.delta(heartbeat.applied_epoch)
        return Lease(lease_ms, settings.heartbeat_ms, delta, Moment(reign.term, now_ms))

    def _behind(self, reign: Reign, epoch: int) -> tuple[NodeId, ...]:
        return tuple(
            node
            for node, known in self._state.topology.nodes.items()
            if known.is_up and reign.nodes[node].applied_epoch < epoch
        )

    def _reports(self, reign: Reign) -> Reports:
        now_ms = self._now_ms()
        return Reports(
            {
                node: Report(
                    now_ms - heard.at_ms, heard.applied_epoch, tuple(heard.offsets.values())
                )
                for node, heard in reign.nodes.items()
                if heard.is_heard
            }
        )

    async def wait(self, query: bytes, timeout_ms: int) -> bool:
        """Until there is something to tell, or for as long; whether there was nothing at first."""
        try:
            asked = decode_query(query)
        except RaftwoodError:
            return False
        if self._has_answer(asked):
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                while not self._is_closed and not self._has_answer(asked):
                    await self._news.wait()
        return True

    def _has_answer(self, query: Query) -> bool:
        match query:
            case Changes(after_epoch):
                return self._state.topology.epoch != after_epoch
            case Behind(epoch):
                return self._reign is None or not self._behind(self._reign, epoch)
            case _:
                return True

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # The leader's plans

    async def wait_for_plan(self, timeout_s: float) -> None:
        """For as long; less where writes wait for what a node has just told."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_plan_due.wait()

    def plan(self) -> tuple[Change, ...]:
        """What the store that leads proposes now; asked each `plan_ms` at least."""
        self._is_plan_due.clear()
        now_ms, planned_ms = self._now_ms(), self._planned_ms
        self._planned_ms = now_ms
        if self._reign is not None and now_ms - planned_ms > self._settings.lease_ms:
            # Whoever was stopped for a while has not heard what came meanwhile.
            self._reign = self._reign.begun_anew(now_ms)
        try:
            reign = self._current_reign()
        except NotLeader:
            return ()
        reign.has_news_of_stuck = False
        return plan(self._state.topology, reign, self._settings, now_ms)

    # Snapshots

    def save_snapshot(self, files: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:  # noqa: ARG002
        data = _MAGIC + bytes([FORMAT_VERSION]) + _encoder.encode(self._state.topology)
        return in_chunks(data, stopped)

    async def recover_from_snapshot(
        self,
        chunks: AsyncIterator[bytes],
        files: Mapping[str, str],  # noqa: ARG002
        stopped: Stopped,
    ) -> None:
        data = await gathered(chunks, stopped)
        if data is None:
            return
        self._state = MetaState(_restored(data))
        self._wake()

    def close(self) -> None:
        """Whoever waits is let go."""
        self._is_closed = True
        self._wake()


def _restored(data: bytes) -> Topology:
    head = len(_MAGIC) + 1
    if len(data) < head or not data.startswith(_MAGIC):
        raise StoreDamaged(_DAMAGED)
    if data[head - 1] != FORMAT_VERSION:
        raise UnsupportedVersion(
            f"a snapshot of Zeppelin's meta server is of version {data[head - 1]}, this program "
            f"reads {FORMAT_VERSION}: use a newer program"
        )
    try:
        return _topologies.decode(data[head:])
    except (msgspec.MsgspecError, ValueError, RaftwoodError) as error:
        raise StoreDamaged(_DAMAGED) from error
