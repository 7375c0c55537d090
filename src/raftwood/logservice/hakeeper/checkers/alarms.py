"""Alarms: what people should look at, found in the state; nothing is done for them by itself."""

from raftwood.logservice.hakeeper.alarm import Alarm, AlarmKind
from raftwood.logservice.hakeeper.checkers.planning import Planning, majority
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.hakeeper.state import Phase, State


def find_alarms(state: State, settings: HaKeeperSettings) -> list[Alarm]:
    planning = Planning(state, settings)
    found: list[Alarm] = []
    if state.phase is Phase.BOOTSTRAP_FAILED:
        found.append(Alarm(AlarmKind.BOOTSTRAP_FAILED, state.reason))
    for number in state.shards:
        found += _of_shard(planning, number)
    for number in sorted(state.stores):
        found += _of_store(planning, number)
    return found


def _of_shard(planning: Planning, number: int) -> list[Alarm]:
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


def _of_store(planning: Planning, number: int) -> list[Alarm]:
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
