"""What HAKeeper is told, asked and keeps: whatever it is, there is an answer or a clear error."""

from raftwood.base.errors import InvalidInput, StoreDamaged, UnsupportedVersion
from raftwood.logservice.hakeeper import commands
from raftwood.logservice.hakeeper import commands as commands_module
from raftwood.logservice.hakeeper.checkers import plan
from raftwood.logservice.hakeeper.messages import (
    GUESTS_FIRST,
    FinishedOrder,
    Order,
    OrderKind,
    ServiceHeartbeat,
    ServiceKind,
    ShardReplicaReport,
    StoreHeartbeat,
    TnReplicaReport,
)
from raftwood.logservice.hakeeper.queries import find_alarms
from raftwood.logservice.hakeeper.state import decode_state, encode_state
from raftwood.logservice.hakeeper.state_machine import HaKeeperStateMachine
from raftwood.raft.core import Entry


def command_target(data: bytes) -> None:
    """Taken or refused, on a cluster that is set up; the state stays one that can be kept."""
    machine = HaKeeperStateMachine()
    machine.state = decode_state(_SET_UP)
    results = machine.update([Entry(1, 1, payload=data), Entry(1, 2, payload=data)])
    assert len(results) == 2
    assert machine.lookup(data)
    try:
        command = commands.decode_command(data)
    except InvalidInput:
        return
    assert commands.decode_command(commands.encode_command(command)) == command
    machine.plan()
    assert encode_state(decode_state(encode_state(machine.state))) == encode_state(machine.state)


def snapshot_target(data: bytes) -> None:
    """What is taken can be worked with; all else is told."""
    machine = HaKeeperStateMachine()
    try:
        machine.state = decode_state(data)
    except (StoreDamaged, UnsupportedVersion):
        return
    heard = commands.encode_command(commands.HearStore(_heartbeat(1)))
    machine.update([Entry(1, 1, payload=machine.tick_command()), Entry(1, 2, payload=heard)])
    plan(machine.state, machine.settings)
    find_alarms(machine.state, machine.settings)


def _heartbeat(store: int) -> StoreHeartbeat:
    replicas = tuple(
        ShardReplicaReport(shard, 5, (1, 2, 3), (4,), 1, 2, 70, {2: 0, 3: 1, 4: 9})
        for shard in (0, 1)
    )
    return StoreHeartbeat(store, f"s{store}:1", "zone", "a", "1", replicas, (FinishedOrder(1),))


def _told() -> list[commands.KeeperCommand]:
    members = {store: f"s{store}:1" for store in (1, 2, 3)}
    owned = TnReplicaReport(2, 1, 3)
    order = Order(0, OrderKind.ADD_VOTER, 1, "", 1, 5, {}, 4, "s4:1", 3, expires_tick=90)
    begin = Order(0, OrderKind.BOOTSTRAP_SHARD, 1, shard=1, members=members, expires_tick=90)
    return [
        commands.SetInitialCluster(2, 1, 3, 3, members),
        commands.Schedule(1, 1, (begin,)),
        *(commands.HearStore(_heartbeat(store)) for store in (1, 2, 3)),
        commands.HearService(
            ServiceHeartbeat("tn-1", ServiceKind.TN, "t:1", {"zone": "a"}, (owned,))
        ),
        commands.Schedule(1, 1, (order,)),
        commands.AllocateIds(3),
        commands.AddShard("more", 3, 1, "nonce"),
        commands.DrainStore(3, is_draining=True),
        commands.KeeperTick(60, 100),
        commands.AddTnShard(2, "nonce"),
        commands.AddGuests({GUESTS_FIRST: "guest"}),
    ]


def _set_up() -> list[bytes]:
    machine = HaKeeperStateMachine()
    found = [encode_state(machine.state)]
    for command in _told():
        machine.update([Entry(1, 1, payload=commands.encode_command(command))])
        found.append(encode_state(machine.state))
    return found


_SET_UP = _set_up()[-1]


def command_seeds() -> list[bytes]:
    """Valid inputs for `command_target`."""
    more: list[commands.KeeperCommand] = [
        commands.RemoveShard(2),
        commands.ForgetStore(4),
        commands.RemoveService("tn-1"),
        commands.RemoveTnShard(3),
    ]
    asked: list[commands_module.KeeperQuery] = [
        commands_module.DescribeCluster(),
        commands_module.FindShard(1),
        commands_module.FindShard(name="log-1"),
        commands_module.ListAddresses(),
    ]
    return [
        *(commands.encode_command(command) for command in (*_told(), *more)),
        *(commands_module.encode_query(query) for query in asked),
    ]


def snapshot_seeds() -> list[bytes]:
    """Valid inputs for `snapshot_target`."""
    return _set_up()
