"""Logservice itself: one process per store at default settings, the client library in another."""

import asyncio
import pathlib
import sys

import raftwood
from benchmarks.harness.system import NODES, Layout, Load
from raftwood.base.errors import RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.wire import LOCATE
from raftwood.net import Secret
from raftwood.net.stores import ClientNetwork, Stores

CLUSTER = "benchmark"
SECRET = "known to everybody in a benchmark"
CLIENT_NETWORK = ClientNetwork(cluster=CLUSTER, secret=Secret(SECRET.encode()))
ASK_TIMEOUT_MS = 2_000
CONFIG = """
[cluster]
name = "{cluster}"
members = [{members}]
[secrets]
stores = "{secret}, stores"
clients = "{secret}"
operators = "{secret}, operators"
[hakeeper]
log_shards = {shards}
[logs]
level = "warning"
"""


class LogserviceSystem:
    name = "logservice"
    groups_max = 1 << 13
    has_batches = True
    warm_up_s = 2.0

    def prepare(self) -> str:
        return (
            f"Raftwood's Logservice {raftwood.__version__}, three replicas, fsync on, default "
            "settings, authenticated, each append exactly once; all clients in one process over "
            "one connection to each store; batches: 500 records of 100 B as one record of the log"
        )

    def node_command(self, layout: Layout, node: int) -> list[str]:
        config = pathlib.Path(layout.folder, "raftwood.toml")
        if not config.exists():
            members = (
                f'"{store}={address}"' for store, address in enumerate(layout.client_addresses(), 1)
            )
            text = CONFIG.format(
                cluster=CLUSTER, members=", ".join(members), secret=SECRET, shards=layout.groups
            )
            config.write_text(text, encoding="utf-8")
            config.chmod(0o600)
        return [
            sys.executable,
            "-m",
            "raftwood.cli",
            "logservice",
            "start",
            f"--config={config}",
            f"--set=node.store_id={node + 1}",
            f"--set=node.data_folder={layout.node_folder(node)}/store",
        ]

    def leaders(self, layout: Layout) -> list[int | None]:
        return asyncio.run(self._leaders(layout))

    async def _leaders(self, layout: Layout) -> list[int | None]:
        addresses = dict(enumerate(layout.client_addresses(), 1))
        with real_environment() as environment:
            stores = Stores(environment, CLIENT_NETWORK, addresses)
            try:
                answers = []
                for store in range(1, NODES + 1):
                    channel = await stores.connected(store, ASK_TIMEOUT_MS)
                    asked = (
                        channel.ask(LOCATE, shard, ASK_TIMEOUT_MS)
                        for shard in range(1, layout.groups + 1)
                    )
                    answers.append([said.leader for said in await asyncio.gather(*asked)])
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
            "benchmarks.logservice.logservice_load",
            f"--addresses={','.join(layout.client_addresses())}",
            *load.flags(),
        ]
