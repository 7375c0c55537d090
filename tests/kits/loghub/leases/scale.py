"""Many workers and many shards: how many rounds, moves, calls and rows it takes to balance them.

A round is one look of every worker at the store; calls are answered at once, and nothing fails.
"""

from collections import Counter
from dataclasses import dataclass

from raftwood.loghub.consumer import lease_events
from raftwood.loghub.consumer.lease_agent import LeaseAgent
from raftwood.loghub.consumer.lease_events import StoreCall
from raftwood.loghub.consumer.lease_plan import plan_by_count
from raftwood.loghub.consumer.leases import LeaseOwner, LeaseTimes, NewLease, Save
from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
from tests.kits.loghub.leases.sim_worker import result_of

TIMES = LeaseTimes(poll_ms=2_500)
"""Own rows are polled at every tick; in earnest they are polled far more often, for no rows."""


@dataclass
class Tally:
    calls: Counter[str]
    rows: Counter[str]
    """Answered or changed, by call; worker rows of scans by themselves."""


class ManyWorkers:
    def __init__(self, *, shards: int) -> None:
        self.store = MemoryLeaseStore()
        self.now_ms = 1_000
        self.listed = [NewLease(f"{number:05}") for number in range(shards)]
        self.agents: list[LeaseAgent] = []
        self.starts = 0
        self.tally = Tally(Counter(), Counter())

    def join(self, count: int) -> None:
        joined: list[LeaseAgent] = []
        for _ in range(count):
            number = len(self.agents) + len(joined)
            owner = LeaseOwner(f"w{number:04}", f"p{number:04}")
            joined.append(LeaseAgent(owner, TIMES, plan_by_count, self.now_ms))
        self.agents += joined
        for agent in joined:
            self._feed(agent, lease_events.ShardsListed(self.listed, agent.deleted_seq))

    def run_for(self, duration_ms: int, *, step_ms: int = 500) -> None:
        for _ in range(duration_ms // step_ms):
            self.now_ms += step_ms
            for agent in self.agents:
                if agent.wake_ms() <= self.now_ms:
                    self._feed(agent, lease_events.Ticked())

    def sizes(self) -> tuple[int, int]:
        found = Counter(lease.lease_process for lease in self.store.leases.values())
        sizes = [found[agent.me.process] for agent in self.agents]
        return min(sizes), max(sizes)

    def _feed(self, agent: LeaseAgent, event: lease_events.Event) -> None:
        events = [event]
        while events:
            for action in agent.step(events.pop(), self.now_ms):
                if isinstance(action, lease_events.StartConsumer):
                    self.starts += 1
                elif isinstance(action, lease_events.StopConsumer):
                    save = Save(action.shard, action.epoch, "p", 1 << 30)
                    events.append(lease_events.ConsumerStopped(save))
                elif not isinstance(action, lease_events.Finish):
                    events.append(self._answer(agent.me, action))

    def _answer(self, me: LeaseOwner, ask: lease_events.Ask) -> lease_events.Event:
        store, name = self.store, type(ask).__name__
        self.tally.calls[name] += 1
        match ask:
            case lease_events.AskRegister():
                return lease_events.WorkerRegistered(result_of(store.register(me)))
            case lease_events.AskScan(after, processes):
                scan = result_of(store.scan(after, processes))
                self.tally.rows[name] += len(scan.leases)
                self.tally.rows["workers"] += len(scan.workers)
                return lease_events.Scanned(scan)
            case lease_events.AskPoll(after):
                scan = result_of(store.own(me.process, after))
                self.tally.rows[name] += len(scan.leases)
                return lease_events.Polled(scan)
            case lease_events.AskRenew(renewals):
                self.tally.rows[name] += len(renewals)
                return lease_events.LeasesRenewed(result_of(store.renew(me, renewals)))
            case lease_events.AskTake(takes):
                self.tally.rows[name] += len(takes)
                return lease_events.LeasesAnswered(StoreCall.TAKE, result_of(store.take(me, takes)))
            case lease_events.AskBecome(renewals):
                leases = result_of(store.become_consumer(me, renewals))
                return lease_events.LeasesAnswered(StoreCall.BECOME, leases)
            case lease_events.AskHandOver(saves):
                leases = result_of(store.hand_over(me.process, saves))
                return lease_events.LeasesAnswered(StoreCall.HAND_OVER, leases)
            case lease_events.AskCreate(leases, deleted_seq):
                result_of(store.create(leases, deleted_seq=deleted_seq))
                return lease_events.StoreCallDone(StoreCall.CREATE)
            case _:
                raise AssertionError(f"nobody leaves, and no shard ends: {ask}")


def balance(shards: int, first: int, workers: int) -> str:
    """Some workers share all shards, then more join; what that took."""
    world = ManyWorkers(shards=shards)
    world.join(first)
    world.run_for(TIMES.timeout_ms)
    least, most = world.sizes()
    assert most - least <= 1
    assert world.starts == shards
    world.join(workers - first)
    world.run_for(TIMES.timeout_ms)
    least, most = world.sizes()
    assert most - least <= 1
    # Sticky quotas: what the new ones have is all that moved.
    joined = {agent.me.process for agent in world.agents[first:]}
    moved = sum(lease.lease_process in joined for lease in world.store.leases.values())
    assert world.starts == shards + moved
    world.tally.calls.clear()
    world.tally.rows.clear()
    world.run_for(TIMES.timeout_ms)
    calls, rows = world.tally.calls, world.tally.rows
    assert calls["AskTake"] == 0
    # At rest a scan by change shows workers, and no leases.
    assert rows["AskScan"] <= shards * workers * TIMES.timeout_ms // TIMES.scan_ms // 15
    return f"{shards} shards, {workers} workers, {moved} moved; in one T: {calls} {rows}"


if __name__ == "__main__":
    print(balance(10_000, 900, 1_000))
