"""Questions to HAKeeper and what it answers, as bytes: all of it that a client needs to know."""

from typing import TypeVar

import msgspec

from raftwood.base.errors import InternalError, error_class
from raftwood.logservice.hakeeper.alarm import Alarm
from raftwood.logservice.hakeeper.commands import Failed
from raftwood.logservice.hakeeper.orders import Order
from raftwood.logservice.hakeeper.reports import ServiceKind
from raftwood.logservice.hakeeper.state import FailedOrder, Phase


class DescribeCluster(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """All there is to know; the answer is a `ClusterView`."""


class FindShard(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """One shard, by its name if that is given, else by its number; a `ShardView`."""

    shard: int = 0
    name: str = ""


class ListAddresses(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Where the stores are; `Addresses`."""


class ListLogs(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The logs whose names begin so; `LogNames`."""

    prefix: str = ""


Query = DescribeCluster | FindShard | ListAddresses | ListLogs


class StoreView(msgspec.Struct, frozen=True, array_like=True):
    """A store, as HAKeeper sees it."""

    store: int
    address: str
    failure_domain: str
    version: str
    is_live: bool
    is_draining: bool
    silent_ticks: int
    replicas: int
    leaders: int
    disk_bytes: int
    disk_free_bytes: int


class ShardView(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A shard, as HAKeeper sees it."""

    shard: int
    name: str
    wanted_voters: int
    wanted_learners: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    addresses: dict[int, str]
    """Of all members."""
    leader: int
    term: int
    epoch: int
    lagging: dict[int, int]
    """By how many entries each member is behind the leader; left out until it has answered it."""
    retained_bytes: int = 0
    """Of its log, at the store that keeps most."""


class ServiceView(msgspec.Struct, frozen=True, array_like=True):
    """A service, as HAKeeper sees it."""

    service: str
    kind: ServiceKind
    address: str
    labels: dict[str, str]
    is_live: bool
    silent_ticks: int


class TnShardView(msgspec.Struct, frozen=True, array_like=True):
    """A TN shard and its owner."""

    tn_shard: int
    log_shard: int
    owner: str
    holder: int


class ClusterView(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The whole cluster."""

    phase: Phase
    reason: str
    tick: int
    term: int
    stores: tuple[StoreView, ...]
    shards: tuple[ShardView, ...]
    services: tuple[ServiceView, ...]
    tn_shards: tuple[TnShardView, ...]
    alarms: tuple[Alarm, ...]
    orders: tuple[Order, ...]
    """Under way."""
    failures: tuple[FailedOrder, ...]
    """Orders that were not carried out, the newest last."""


class Addresses(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Where each store is, known or named at the beginning."""

    stores: dict[int, str]


class LogNames(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Names of logs, in order."""

    names: list[str]


Answer = ClusterView | ShardView | Addresses | LogNames
AnswerType = TypeVar("AnswerType", ClusterView, ShardView, Addresses, LogNames)

_encoder = msgspec.msgpack.Encoder()
_answers: msgspec.msgpack.Decoder[Answer | Failed] = msgspec.msgpack.Decoder(Answer | Failed)


def encode_query(query: Query) -> bytes:
    return _encoder.encode(query)


def decode_answer(data: bytes, expected: type[AnswerType]) -> AnswerType:
    """The answer, or the error that it tells of, raised."""
    said = _answers.decode(data)
    if isinstance(said, Failed):
        raise error_class(said.code)(said.message)
    if not isinstance(said, expected):
        raise InternalError(f"HAKeeper answered {said!r:.80} to another question")
    return said
