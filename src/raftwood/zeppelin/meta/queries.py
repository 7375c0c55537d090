"""Queries to the meta server and their answers, as bytes."""

from typing import TypeVar

import msgspec

from raftwood.base.errors import InternalError, InvalidInput
from raftwood.zeppelin.meta.changes import RefusedChange
from raftwood.zeppelin.meta.deltas import Delta
from raftwood.zeppelin.meta.heartbeats import LeaderMoment, NodeHeartbeat, ReplicaOffset
from raftwood.zeppelin.model import NodeId


class TopologyQuery(msgspec.Struct, frozen=True, array_like=True, tag="changes"):
    """Asks for the changes since an epoch; waits until there are some."""

    after_epoch: int


class BehindQuery(msgspec.Struct, frozen=True, array_like=True, tag="behind"):
    """Asks which nodes that are up have not applied an epoch; waits until there are none."""

    epoch: int


class ReportsQuery(msgspec.Struct, frozen=True, array_like=True, tag="list_reports"):
    """Asks for each node's last report to the leader."""


Query = TopologyQuery | BehindQuery | ReportsQuery | NodeHeartbeat


class TopologyAnswer(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """Changes of the topology, for `deltas.applied`."""

    delta: Delta


class LeaseAnswer(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """The answer to a heartbeat.

    A node may serve as master for `lease_ms` from the moment **before it asked**, and only once it
    has applied the delta, which is from the same moment as the lease: else it could continue in a
    former role. 0: no new lease; an earlier one still counts.
    """

    lease_ms: int
    heartbeat_ms: int
    delta: Delta
    moment: LeaderMoment
    """For the next heartbeat, see `NodeHeartbeat.after`."""


class NodesAnswer(msgspec.Struct, frozen=True, array_like=True, tag="nodes"):
    """An answer that lists nodes."""

    nodes: tuple[NodeId, ...]


class NodeReport(msgspec.Struct, frozen=True, array_like=True):
    """A node's last report, and its age."""

    heard_ms: int
    applied_epoch: int
    offsets: tuple[ReplicaOffset, ...]


class ReportsAnswer(msgspec.Struct, frozen=True, array_like=True, tag="reports"):
    """Reports by node, without nodes that the leader has no report of."""

    reports: dict[NodeId, NodeReport]


class RefusedAnswer(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """An error, as an answer."""

    reason: RefusedChange


Answer = TopologyAnswer | LeaseAnswer | NodesAnswer | ReportsAnswer | RefusedAnswer
AnswerType = TypeVar("AnswerType", TopologyAnswer, LeaseAnswer, NodesAnswer, ReportsAnswer)

_encoder = msgspec.msgpack.Encoder()
_queries: msgspec.msgpack.Decoder[Query] = msgspec.msgpack.Decoder(Query)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode_query(query: Query) -> bytes:
    return _encoder.encode(query)


def decode_query(data: bytes) -> Query:
    try:
        return _queries.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"not a question to Zeppelin's meta server: {error}") from None


def encode_answer(answer: Answer) -> bytes:
    return _encoder.encode(answer)


def decode_answer(data: bytes, expected: type[AnswerType]) -> AnswerType:
    """Returns the answer; raises the error that it carries."""
    said = _answers.decode(data)
    if isinstance(said, RefusedAnswer):
        raise said.reason.error()
    if not isinstance(said, expected):
        raise InternalError(f"the meta server answered {said!r:.80} to another question")
    return said
