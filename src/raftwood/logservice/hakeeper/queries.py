"""HAKeeper's answers to questions, from its state."""

import msgspec

from raftwood.base.errors import InvalidInput, NotFound, RaftwoodError
from raftwood.logservice.hakeeper.checkers.alarms import find_alarms
from raftwood.logservice.hakeeper.commands import Failed, failed
from raftwood.logservice.hakeeper.reports import is_log
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.hakeeper.state import State
from raftwood.logservice.hakeeper.views import (
    Addresses,
    Answer,
    ClusterView,
    DescribeCluster,
    FindShard,
    ListAddresses,
    ListLogs,
    LogNames,
    Query,
    ServiceView,
    ShardView,
    StoreView,
    TnShardView,
)

_encoder = msgspec.msgpack.Encoder()
_queries: msgspec.msgpack.Decoder[Query] = msgspec.msgpack.Decoder(Query)


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
            case ListLogs(prefix):
                said = LogNames(_log_names(state, prefix))
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
        max(
            (
                store.replicas[number].retained_bytes
                for store in state.stores.values()
                if number in store.replicas
            ),
            default=0,
        ),
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


def _log_names(state: State, prefix: str) -> list[str]:
    shards = state.shards.items()
    return sorted(
        each.name for number, each in shards if is_log(number) and each.name.startswith(prefix)
    )


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
