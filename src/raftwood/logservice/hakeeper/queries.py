"""HAKeeper's answers to queries, and alarms for operators, from its state.

HAKeeper takes no action on an alarm.
"""

import msgspec

from raftwood.base.errors import InvalidInput, NotFound, RaftwoodError
from raftwood.logservice.hakeeper.checkers import PlanningRound, majority
from raftwood.logservice.hakeeper.commands import (
    Addresses,
    ClusterView,
    DescribeCluster,
    FindShard,
    KeeperAnswer,
    KeeperFailed,
    KeeperQuery,
    KeeperShardView,
    ListAddresses,
    ListLogs,
    LogNames,
    ServiceView,
    StoreView,
    TnShardView,
    failed,
)
from raftwood.logservice.hakeeper.messages import Alarm, AlarmKind, is_log
from raftwood.logservice.hakeeper.state import ClusterPhase, KeeperState
from raftwood.logservice.settings import HaKeeperSettings


def find_alarms(state: KeeperState, settings: HaKeeperSettings) -> list[Alarm]:
    planning = PlanningRound(state, settings)
    found: list[Alarm] = []
    if state.phase is ClusterPhase.BOOTSTRAP_FAILED:
        found.append(Alarm(AlarmKind.BOOTSTRAP_FAILED, state.reason))
    for number in state.shards:
        found += _of_shard(planning, number)
    for number in sorted(state.stores):
        found += _of_store(planning, number)
    return found


def _of_shard(planning: PlanningRound, number: int) -> list[Alarm]:
    state, shard = planning.state, planning.state.shards[number]
    found: list[Alarm] = []
    for store, text in shard.conflicts.items():
        found.append(Alarm(AlarmKind.EPOCH_CONFLICT, text, number, store))
    alive = [store for store in shard.voters if planning.is_serving(number, store)]
    silent = state.tick - max(shard.leader_tick, shard.created_tick)
    if shard.leader_tick and len(alive) < majority(shard.voters) and not planning.leader(number):
        text = f"shard {number} has {len(alive)} of its voters {list(shard.voters)}: its quorum"
        remedy = (
            "if they are gone for good, stop the rest, and on the store with the newest entry run "
            f"'raftwood raft recover --data-folder FOLDER --group {number} --members "
            "STORE=HOST:PORT'"
        )
        text = f"{text} is lost until more return; {remedy}"
        found.append(Alarm(AlarmKind.LOST_QUORUM, text, number))
    elif shard.voters and silent >= planning.settings.leaderless_ticks:
        text = f"shard {number} has had no leader for {silent} ticks"
        found.append(Alarm(AlarmKind.LEADERLESS, text, number))
    wanted = shard.replicas + shard.learners_wanted
    places = len(planning.places())
    if places < wanted:
        text = f"shard {number} wants {wanted} replicas, and {places} stores can have one"
        found.append(Alarm(AlarmKind.TOO_FEW_STORES, text, number))
    if 0 < len(shard.voters) < shard.replicas:
        text = f"shard {number} has {len(shard.voters)} voters, and wants {shard.replicas}"
        found.append(Alarm(AlarmKind.TOO_FEW_VOTERS, text, number))
    return found


def _of_store(planning: PlanningRound, number: int) -> list[Alarm]:
    state, store = planning.state, planning.state.stores[number]
    found = [Alarm(AlarmKind.STORE, text, store=number) for text in store.alarms]
    if number not in planning.live:
        text = f"store {number} has been silent for {state.tick - store.heard_tick} ticks"
        return [Alarm(AlarmKind.STORE_DOWN, text, store=number)]
    if store.is_reborn:
        text = f"store {number} came back without its data, and the others may refuse it: let it"
        found.append(Alarm(AlarmKind.STORE, f"{text} join with a new number", store=number))
    for report in store.replicas.values():
        if report.problem:
            found.append(Alarm(AlarmKind.REPLICA_PROBLEM, report.problem, report.shard, number))
        if report.shard not in state.shards and report.shard not in state.removed_shards:
            text = f"store {number} has a replica of shard {report.shard}, which nobody knows"
            found.append(Alarm(AlarmKind.UNKNOWN_REPLICA, text, report.shard, number))
    return found


_encoder = msgspec.msgpack.Encoder()
_queries: msgspec.msgpack.Decoder[KeeperQuery] = msgspec.msgpack.Decoder(KeeperQuery)


def answer(state: KeeperState, settings: HaKeeperSettings, query: bytes) -> bytes:
    """Answers a query from a state; an error is an answer, too."""
    said: KeeperAnswer | KeeperFailed
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


def describe(state: KeeperState, settings: HaKeeperSettings) -> ClusterView:
    """The whole cluster as HAKeeper knows it."""
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


def view_shard(state: KeeperState, number: int) -> KeeperShardView:
    shard = state.shards[number]
    members = (*shard.voters, *shard.learners)
    return KeeperShardView(
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


def _number(state: KeeperState, shard: int, name: str) -> int:
    if name:
        for number, each in state.shards.items():
            if each.name == name:
                return number
        raise NotFound(f"there is no shard {name[:140]!r}: check its name")
    if shard not in state.shards:
        raise NotFound(f"there is no shard {shard}: check its number")
    return shard


def _log_names(state: KeeperState, prefix: str) -> list[str]:
    shards = state.shards.items()
    return sorted(
        each.name for number, each in shards if is_log(number) and each.name.startswith(prefix)
    )


def _addresses(state: KeeperState) -> dict[int, str]:
    known = {number: store.address for number, store in state.stores.items()}
    return dict(sorted((state.members | known).items()))


def _view_store(state: KeeperState, settings: HaKeeperSettings, number: int) -> StoreView:
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


def _view_service(state: KeeperState, settings: HaKeeperSettings, name: str) -> ServiceView:
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
