"""HAKeeper's state with short ways to tell it things, for tests of its rules."""

import msgspec

from raftwood.logservice.hakeeper import checkers, rules
from raftwood.logservice.hakeeper.commands import (
    HearService,
    HearStore,
    KeeperCommand,
    KeeperSuccess,
    KeeperTick,
    Ordered,
    Schedule,
    Scheduled,
    SetInitialCluster,
    decode_result,
    encode_command,
)
from raftwood.logservice.hakeeper.messages import (
    FinishedOrder,
    Order,
    OrderKind,
    ServiceHeartbeat,
    ServiceKind,
    ShardReplicaReport,
    StoreHeartbeat,
    TnReplicaReport,
)
from raftwood.logservice.hakeeper.state import ClusterPhase, KeeperState
from raftwood.logservice.settings import HaKeeperSettings

SETTINGS = HaKeeperSettings(
    store_down_ticks=10,
    service_down_ticks=5,
    order_ticks=20,
    zombie_ticks=12,
    bootstrap_grace_ticks=4,
    bootstrap_ticks=30,
    leaderless_ticks=6,
    lag_entries=10,
    moves_every_ticks=1000,
)


def report(
    shard: int,
    voters: tuple[int, ...] = (),
    *,
    leader: int = 0,
    epoch: int = 0,
    term: int = 1,
    learners: tuple[int, ...] = (),
    lagging: dict[int, int] | None = None,
    problem: str = "",
    is_joint: bool = False,
) -> ShardReplicaReport:
    behind = dict.fromkeys((*voters, *learners), 0) | (lagging or {})
    return ShardReplicaReport(
        shard, epoch, voters, learners, leader, term, 5, behind, problem, is_joint=is_joint
    )


class Keeper:
    """Every command goes through bytes."""

    def __init__(self, settings: HaKeeperSettings = SETTINGS) -> None:
        self.settings = settings
        self.state = KeeperState()
        self.incarnations: dict[int, str] = {}
        self.domains: dict[int, str] = {}

    def tell(self, command: KeeperCommand) -> KeeperSuccess:
        return decode_result(rules.apply(self.state, encode_command(command)))

    def begin(self, stores: int = 3, *, shards: int = 1, replicas: int = 3, tn: int = 0) -> None:
        members = {store: f"s{store}:1" for store in range(1, stores + 1)}
        self.tell(SetInitialCluster(shards, tn, replicas, min(3, stores), members))

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            command = KeeperTick(self.settings.bootstrap_ticks, self.settings.service_removed_ticks)
            self.tell(command)

    def store(
        self,
        store: int,
        *replicas: ShardReplicaReport,
        finished: tuple[FinishedOrder, ...] = (),
        alarms: tuple[str, ...] = (),
    ) -> tuple[Order, ...]:
        heartbeat = StoreHeartbeat(
            store,
            f"s{store}:1",
            self.domains.get(store, ""),
            self.incarnations.get(store, "a"),
            "1",
            replicas,
            finished,
            alarms,
        )
        answer = self.tell(HearStore(heartbeat))
        assert isinstance(answer, Ordered)
        return answer.orders.orders

    def service(
        self,
        name: str,
        *replicas: TnReplicaReport,
        finished: tuple[FinishedOrder, ...] = (),
        kind: ServiceKind = ServiceKind.TN,
    ) -> tuple[Order, ...]:
        heartbeat = ServiceHeartbeat(name, kind, f"{name}:1", {}, replicas, finished)
        answer = self.tell(HearService(heartbeat))
        assert isinstance(answer, Ordered)
        return answer.orders.orders

    def say(self, stores: tuple[int, ...], *replicas: ShardReplicaReport) -> None:
        """All of these stores have all of these replicas."""
        for store in stores:
            self.store(store, *replicas)

    def plan(self) -> list[Order]:
        return checkers.plan(self.state, self.settings)

    def phase(self) -> ClusterPhase:
        return self.state.phase

    def kinds(self) -> list[OrderKind]:
        return [order.kind for order in self.plan()]

    def schedule(self, term: int = 1) -> int:
        result = self.tell(Schedule(term, self.state.tick, tuple(self.plan())))
        assert isinstance(result, Scheduled)
        return result.taken

    def running(self, stores: int = 3, *, tn: int = 0) -> None:
        """HAKeeper and shard 1 on stores 1 to 3, led by store 1; more stores are empty."""
        self.begin(stores if stores == 3 else 3, tn=tn)
        self.say(tuple(range(1, 4)), report(0, (1, 2, 3), leader=1))
        self.schedule()
        self.hear_all(stores)
        self.state.orders.clear()

    def hear_all(self, stores: int = 3, *, without: tuple[int, ...] = ()) -> None:
        """Stores 1 to 3 serve both shards as they are known; the others have nothing."""
        for store in range(1, stores + 1):
            if store in without:
                continue
            replicas = []
            for number, shard in self.state.shards.items():
                voters = shard.voters or (1, 2, 3)
                if store in (*voters, *shard.learners):
                    leader = shard.leader or 1
                    replicas.append(
                        report(
                            number,
                            voters,
                            leader=leader,
                            epoch=shard.epoch,
                            learners=shard.learners,
                            term=shard.term or 1,
                        )
                    )
            self.store(store, *replicas)

    def silence(self, *stores: int, known: int = 3) -> None:
        """These stores are silent until they are taken for dead; the others go on."""
        for _ in range(self.settings.store_down_ticks + 1):
            self.tick()
            self.hear_all(known, without=stores)

    def copy(self) -> KeeperState:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(self.state), type=KeeperState)
