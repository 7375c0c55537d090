"""Raftwood itself: one process per store, the client library in another one."""

import asyncio
import sys

import raftwood
from benchmarks.harness.system import NODES, Layout, Load
from benchmarks.raft_cluster.raftwood_node import CLIENT_NETWORK, LEADERS
from raftwood.base.errors import RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.net.stores import Stores

ASK_TIMEOUT_MS = 2_000


class RaftwoodSystem:
    name = "raftwood"
    groups_max = 1 << 16

    def prepare(self) -> str:
        return (
            f"Raftwood {raftwood.__version__}, fsync on, authenticated, heartbeat 100 ms, election "
            "1 s, CheckQuorum and pre-vote, idle groups sleep after 0.2 s, no snapshots, in-memory "
            "state machine, no sessions; a client process, one connection to each node"
        )

    def node_command(self, layout: Layout, node: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "benchmarks.raft_cluster.raftwood_node",
            f"--store={node + 1}",
            f"--addresses={','.join(layout.client_addresses())}",
            f"--folder={layout.node_folder(node)}",
            f"--groups={layout.groups}",
        ]

    def leaders(self, layout: Layout) -> list[int | None]:
        return asyncio.run(self._leaders(layout))

    async def _leaders(self, layout: Layout) -> list[int | None]:
        addresses = dict(enumerate(layout.client_addresses(), 1))
        with real_environment() as environment:
            stores = Stores(environment, CLIENT_NETWORK, addresses)
            try:
                # Each store knows its own groups best, and all of them have to agree.
                answers = []
                for store in range(1, NODES + 1):
                    channel = await stores.connected(store, ASK_TIMEOUT_MS)
                    answers.append(await channel.ask(LEADERS, layout.groups, ASK_TIMEOUT_MS))
            except RaftwoodError as error:
                raise ConnectionError(error.message) from error
            finally:
                await stores.close()
        return [
            said[0] - 1 if said[0] and len(set(said)) == 1 else None
            for said in zip(*answers, strict=True)
        ]

    def load_command(self, layout: Layout, load: Load, leader: int) -> list[str]:  # noqa: ARG002
        return [
            sys.executable,
            "-m",
            "benchmarks.raft_cluster.raftwood_load",
            f"--addresses={','.join(layout.client_addresses())}",
            f"--groups={layout.groups}",
            *load.flags(),
        ]
