"""One store as a process: the host, what it serves to other stores and to clients, its groups."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, StoreError, StoreLocked
from raftwood.disk.segment_log import LogSettings
from raftwood.net import Secret, Server, ServerLimits, Service
from raftwood.net.identity import OPERATOR_ROLE
from raftwood.net.stores import ClientNetwork
from raftwood.raft.node_host import NodeHost
from raftwood.raft.service import RaftService
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.state_machine import StateMachine
from raftwood.raft.transport import HostNetwork

CLUSTER = "simulated"
FOLDER = "/data/store"
PORT = 7000
GROUPS = (1, 2, 3, 4)
NETWORK = HostNetwork(
    cluster=CLUSTER,
    secret=Secret(b"the secret that only the stores know"),
    operator_secret=Secret(b"the secret that the operators know too"),
)
CLIENT_NETWORK = ClientNetwork(
    cluster=CLUSTER,
    secret=Secret(b"the secret that the operators know too"),
    role=OPERATOR_ROLE,
)
SERVER_LIMITS = ServerLimits(
    handshake_timeout_ms=2_000, ping_interval_ms=4_000, ping_timeout_ms=2_000
)
# Small, so that a short run rolls and compacts segments, reads entries back from the disk for slow
# followers, and sends snapshots to those that are slower still.
LOG_SETTINGS = LogSettings(
    segment_bytes=64 << 10, flush_bytes_max=8 << 10, pending_bytes_max=64 << 10, cache_bytes_max=0
)
HOST_SETTINGS = RaftHostSettings(
    tick_ms=200,
    election_ticks=8,
    message_bytes_max=1 << 10,
    in_flight_bytes_max=8 << 10,
    proposal_bytes_max=16 << 10,
    entry_cache_bytes_max=1 << 10,
    snapshot_entries=60,
    snapshot_entries_kept=20,
    snapshot_chunk_bytes=4 << 10,
    quiesce_ticks=4,
)

_AGENT_S = 0.5


def name_of(store: int) -> str:
    return f"s{store}"


def address_of(store: int) -> str:
    return f"{name_of(store)}:{PORT}"


class StorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a store runs."""

    store: int
    members: Mapping[int, str]
    """The first stores of every group; a store that is none of them waits to be added."""
    machine: Callable[[int], StateMachine]
    """A new state machine for a group."""
    opened: Callable[[NodeHost], None] = lambda _: None
    halted: Callable[[StoreError], None] | None = None
    """Told when the store's data is bad; None where no fault of the run explains that."""


async def serve_store(environment: Environment, plan: StorePlan) -> None:
    """Run a store until it is cancelled; what fills the disk ends it, and it is started again."""
    try:
        await _serve(environment, plan)
    except DiskFull as error:
        environment.end_process(f"no room to start: {error}")
    except StoreError as error:
        if plan.halted is not None and type(error) is not StoreLocked:
            plan.halted(error)
            await asyncio.get_running_loop().create_future()
        if type(error) is not StoreError:
            raise  # damaged or locked: that must never come of a fault of this kind
        environment.end_process(f"cannot open the store: {error}")


async def _serve(environment: Environment, plan: StorePlan) -> None:
    host = await NodeHost.open(
        environment,
        FOLDER,
        cluster=CLUSTER,
        store=plan.store,
        network=NETWORK,
        settings=HOST_SETTINGS,
        log_settings=LOG_SETTINGS,
    )
    try:
        plan.opened(host)
        service = Service()
        host.register(service)
        RaftService(host).register(service)
        credentials = NETWORK.server_credentials(plan.store)
        async with Server(service, credentials, environment.random, SERVER_LIMITS) as server:
            await server.listen(name_of(plan.store), PORT)
            while True:
                await _start_groups(host, plan)
                await asyncio.sleep(_AGENT_S)
    finally:
        await host.close()


async def _start_groups(host: NodeHost, plan: StorePlan) -> None:
    """Start what does not run: at first all, later what was removed, so that it may be added."""
    for group in GROUPS:
        if group not in host.groups() and group not in host.halted():
            members = plan.members if plan.store in plan.members else None
            await host.start_group(group, partial(plan.machine, group), members=members)
