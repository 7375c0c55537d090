"""Questions to HAKeeper and their answers, as bytes."""

from typing import TypeVar

import msgspec

from raftwood.base.errors import InternalError, InvalidInput, NotFound, RaftwoodError, error_class
from raftwood.logservice.hakeeper.checkers.alarms import Alarm, find_alarms
from raftwood.logservice.hakeeper.commands import Failed, failed
from raftwood.logservice.hakeeper.orders import Order
from raftwood.logservice.hakeeper.reports import ServiceKind
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.hakeeper.state import FailedOrder, Phase, State


class DescribeCluster(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """All there is to know; the answer is a `ClusterView`."""


class FindShard(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """One shard, by its name if that is given, else by its number; a `ShardView`."""

    shard: int = 0
    name: str = ""


class ListAddresses(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Where the stores are; `Addresses`."""


Query = DescribeCluster | FindShard | ListAddresses


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
    """By how many entries each member is behind the leader."""


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


Answer = ClusterView | ShardView | Addresses
AnswerType = TypeVar("AnswerType", ClusterView, ShardView, Addresses)

_encoder = msgspec.msgpack.Encoder()
_queries: msgspec.msgpack.Decoder[Query] = msgspec.msgpack.Decoder(Query)
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


def answer(state: State, settings: HaKeeperSettings, query: bytes) -> bytes:
    """Answer a question from a state; an error is an answer, too."""
    said: Answer | Failed
    try:
        match _queries.decode(query):
            case DescribeCluster():
                said = describe(state, settings)
            case FindShard(shard, name):
                said = view_shard(state, _number(state, shard, name))
            case ListAddresses():
                said = Addresses(_addresses(state))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = failed(InvalidInput(f"not a question to HAKeeper: {error}"))
    except RaftwoodError as error:
        said = failed(error)
    return _encoder.encode(said)


def describe(state: State, settings: HaKeeperSettings) -> ClusterView:
    """The whole cluster as it is known."""
    shards = tuple(view_shard(state, number) for number in sorted(state.shards))
    return ClusterView(
        state.phase,
        state.reason,
        state.tick,
        state.term,
        tuple(_view_store(state, settings, number) for number in sorted(state.stores)),
        shards,
        tuple(_view_service(state, settings, name) for name in sorted(state.services)),
        tuple(
            TnShardView(number, each.log_shard, each.owner, each.holder)
            for number, each in state.tn_shards.items()
        ),
        tuple(find_alarms(state, settings)),
        tuple(state.orders.values()),
        tuple(state.failures),
    )


def view_shard(state: State, number: int) -> ShardView:
    shard = state.shards[number]
    members = (*shard.voters, *shard.learners)
    return ShardView(
        number,
        shard.name,
        shard.replicas,
        shard.learners_wanted,
        shard.voters,
        shard.learners,
        {store: address for store, address in _addresses(state).items() if store in members},
        shard.leader,
        shard.term,
        shard.epoch,
        shard.lagging,
    )


def _number(state: State, shard: int, name: str) -> int:
    if name:
        for number, each in state.shards.items():
            if each.name == name:
                return number
        raise NotFound(f"there is no shard {name[:140]!r}: check its name")
    if shard not in state.shards:
        raise NotFound(f"there is no shard {shard}: check its number")
    return shard


def _addresses(state: State) -> dict[int, str]:
    known = {number: store.address for number, store in state.stores.items()}
    return dict(sorted((state.members | known).items()))


def _view_store(state: State, settings: HaKeeperSettings, number: int) -> StoreView:
    store = state.stores[number]
    silent = state.tick - store.heard_tick
    return StoreView(
        number,
        store.address,
        store.failure_domain,
        store.version,
        silent < settings.store_down_ticks,
        store.is_draining,
        silent,
        len(store.replicas),
        sum(shard.leader == number for shard in state.shards.values()),
        store.disk_bytes,
        store.disk_free_bytes,
    )


def _view_service(state: State, settings: HaKeeperSettings, name: str) -> ServiceView:
    service = state.services[name]
    silent = state.tick - service.heard_tick
    return ServiceView(
        name,
        service.kind,
        service.address,
        service.labels,
        silent < settings.service_down_ticks,
        silent,
    )
