"""One store as a real process: `python -m tests.kits.raft.node STORE ADDRESS FOLDER MEMBERS`.

MEMBERS is JSON: the address by which the stores reach each of them. The process says `ready` when
its groups run, ends in order on SIGTERM, and ends at once when its standard input does: it does not
outlive the test.
"""

import asyncio
import json
import os
import signal
import sys

from raftwood.base.environment import Environment
from raftwood.base.logs import bind_context, set_up_logs
from raftwood.base.settings import LoggingSettings
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import LogSettings
from raftwood.net import Secret, Server, Service
from raftwood.net.identity import split_address
from raftwood.raft.node_host import NodeHost
from raftwood.raft.service import RaftService
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.transport import HostNetwork
from raftwood.server.event_loop import run
from tests.kits.raft.ledger import Ledger

CLUSTER = "faults"
CLIENT_SECRET = Secret(b"client" * 6)
NETWORK = HostNetwork(cluster=CLUSTER, secret=Secret(b"stores" * 6), operator_secret=CLIENT_SECRET)

BUSY_GROUPS = (1, 2, 3)
QUIET_GROUP = 4
"""It gets a command now and then, and sleeps in between."""
GROUPS = (*BUSY_GROUPS, QUIET_GROUP)

TICK_MS = 50
ELECTION_TICKS = 10
# Small, so that segments roll and logs are cut within seconds.
SETTINGS = RaftHostSettings(
    tick_ms=TICK_MS,
    election_ticks=ELECTION_TICKS,
    message_bytes_max=16 << 10,
    in_flight_bytes_max=64 << 10,
    entry_cache_bytes_max=32 << 10,
    snapshot_entries=400,
    snapshot_entries_kept=50,
    quiesce_ticks=10,
)
LOG_SETTINGS = LogSettings(segment_bytes=256 << 10, cache_bytes_max=1 << 20, full_retry_ms=50)
HAND_OVER_MS = 2_000


async def serve(
    environment: Environment, *, store: int, address: str, folder: str, members: dict[int, str]
) -> None:
    bind_context(store=store)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_reader(sys.stdin.fileno(), os._exit, 3)
    host = await NodeHost.open(
        environment,
        folder,
        cluster=CLUSTER,
        store=store,
        network=NETWORK,
        settings=SETTINGS,
        log_settings=LOG_SETTINGS,
    )
    service = Service()
    host.register(service)
    RaftService(host).register(service)
    server = Server(service, NETWORK.server_credentials(store), environment.random)
    await server.listen(*split_address(address))
    for group in GROUPS:
        await host.start_group(group, Ledger, members=members)
    print(f"ready {os.getpid()}", flush=True)
    await stopping.wait()
    print(f"tasks {len(asyncio.all_tasks())}", flush=True)
    await host.close(hand_over_ms=HAND_OVER_MS)
    await server.close(drain_timeout_ms=500)
    print("closed", flush=True)


def main() -> None:
    store, address, folder, members = sys.argv[1:]
    with real_environment() as environment:
        set_up_logs(LoggingSettings(level="info", format="json"), clock=environment.clock)
        run(
            serve(
                environment,
                store=int(store),
                address=address,
                folder=folder,
                members={int(each): address for each, address in json.loads(members).items()},
            )
        )


if __name__ == "__main__":
    main()
