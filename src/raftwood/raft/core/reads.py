"""Linearizable reads that wait for a quorum to confirm the leader (dissertation, section 6.4).

A read notes the commit index as it comes in. Once a quorum has answered a heartbeat that left after
that, no newer leader was in office when it came, so nothing beyond that index was acked before.
"""

import msgspec

from raftwood.raft.core.messages import Message


class ReadState(msgspec.Struct, frozen=True):
    """A read may be served once the state machine has applied up to `index`."""

    index: int
    context: bytes
    """As it was given to `read_index`."""


class PendingRead:
    """One read, and the nodes that have confirmed the leader since it came in."""

    __slots__ = ("acknowledged", "index", "request")

    def __init__(self, request: Message, index: int) -> None:
        self.request = request
        self.index = index
        self.acknowledged: dict[int, bool] = {}


class PendingReads:
    """Reads in the order of their arrival; confirming one confirms all before it.

    A heartbeat that confirms a read left after all earlier reads came in, so it confirms those too.
    Reads that arrive faster than the network answers share its rounds. Test: test_raw_node::
    test_the_next_heartbeats_repeat_a_lost_round_and_confirm_all_reads_before
    """

    __slots__ = ("_by_context",)

    def __init__(self) -> None:
        self._by_context: dict[bytes, PendingRead] = {}

    def add(self, request: Message, index: int) -> None:
        """Note a read at the current commit index; a repeated context is one read."""
        # The confirmations that came for the first request stay: a host that asks again because an
        # answer is late must not begin the count anew.
        self._by_context.setdefault(request.context, PendingRead(request, index))

    def acknowledge(self, node: int, context: bytes) -> dict[int, bool]:
        """A node confirmed the leader for a read; returns all nodes that have."""
        pending = self._by_context.get(context)
        if pending is None:
            return {}
        pending.acknowledged[node] = True
        return pending.acknowledged

    def confirm(self, context: bytes) -> list[PendingRead]:
        """Take out a confirmed read and all before it."""
        if context not in self._by_context:
            return []
        confirmed = []
        for key in list(self._by_context):
            confirmed.append(self._by_context.pop(key))
            if key == context:
                break
        return confirmed

    def last_context(self) -> bytes:
        """The newest read's context: heartbeats carry it, so that a lost round is repeated."""
        return next(reversed(self._by_context), b"")
