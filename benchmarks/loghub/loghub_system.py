"""LogHub itself: three stores at default settings, a gateway in front, the client in a process."""

import asyncio
import contextlib
import pathlib
import sys
from collections.abc import Sequence

import msgspec

import raftwood
from benchmarks.harness.system import Layout, Load
from benchmarks.loghub.ways import JSON_LINES, PROJECT, SLS_PUT, STREAMS, Key
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.base.metrics import Metrics
from raftwood.cli.options import Source
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.errors import LogstoreExists, ProjectExists
from raftwood.loghub.model import AccessRole
from raftwood.loghub.server.gateway import Gateway
from raftwood.logservice.wire import LOCATE
from raftwood.net.stores import Stores
from raftwood.server.cluster import operator_network
from raftwood.server.cluster_client import connected_cluster
from raftwood.server.settings import Settings

SECRET = "known to everybody in a benchmark"
ASK_TIMEOUT_MS = 2_000
CONFIG = """
[cluster]
name = "benchmark"
members = [{members}]
[secrets]
stores = "{secret}, stores"
clients = "{secret}"
operators = "{secret}, operators"
[hakeeper]
log_shards = 0
[logs]
level = "warning"
"""


class LogHubSystem:
    """The groups are the shards of each stream."""

    name = "loghub"
    groups_max = 1 << 10
    warm_up_s = 2.0

    def __init__(self, streams: Sequence[str] = STREAMS) -> None:
        self._streams = streams

    def prepare(self) -> str:
        return (
            f"Raftwood's LogHub {raftwood.__version__}, three stores with fsync on and one "
            "gateway, default settings, authenticated, each batch exactly once; the native client"
        )

    def node_command(self, layout: Layout, node: int) -> list[str]:
        return [
            *_program(layout, "logservice"),
            f"--set=node.store_id={node + 1}",
            f"--set=node.data_folder={layout.node_folder(node)}/store",
        ]

    def gateway_command(self, layout: Layout) -> list[str]:
        return [
            *_program(layout, "gateway"),
            f"--set=gateway.listen={gateway_address(layout)}",
            f"--set=gateway.http_listen={layout.peer_addresses()[1]}",
            f"--ready-file={ready_file(layout)}",
        ]

    def leaders(self, layout: Layout) -> list[int | None]:
        """Of the first stream's shards; makes the streams as soon as the stores are there."""
        settings = Source(config=str(_config(layout))).load().settings
        file = pathlib.Path(layout.folder, "streams.json")
        with real_environment() as environment:
            try:
                if not file.exists():
                    asyncio.run(_make_streams(environment, settings, layout, self._streams))
                logs = msgspec.json.decode(file.read_bytes(), type=list[str])
                return asyncio.run(_led_by(environment, settings, layout, logs))
            except RaftwoodError as error:
                raise ConnectionError(error.message) from error

    def load_command(self, layout: Layout, load: Load, leader: int) -> list[str]:  # noqa: ARG002
        is_http = load.way in (SLS_PUT, JSON_LINES)
        program = "benchmarks.loghub.http_load" if is_http else "benchmarks.loghub.loghub_load"
        address = layout.peer_addresses()[1] if is_http else gateway_address(layout)
        key = f"--key={pathlib.Path(layout.folder, 'key.json')}"
        return [sys.executable, "-m", program, f"--addresses={address}", key, *load.flags()]


def gateway_address(layout: Layout) -> str:
    """The stores need no ports for one another beside those for clients."""
    return layout.peer_addresses()[0]


def ready_file(layout: Layout) -> pathlib.Path:
    return pathlib.Path(layout.folder, "gateway.ready")


def _program(layout: Layout, command: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "raftwood.cli",
        command,
        "start",
        f"--config={_config(layout)}",
    ]


def _config(layout: Layout) -> pathlib.Path:
    config = pathlib.Path(layout.folder, "raftwood.toml")
    if not config.exists():
        members = (
            f'"{store}={address}"' for store, address in enumerate(layout.client_addresses(), 1)
        )
        config.write_text(CONFIG.format(members=", ".join(members), secret=SECRET))
        config.chmod(0o600)
    return config


async def _make_streams(
    environment: Environment, settings: Settings, layout: Layout, streams: Sequence[str]
) -> None:
    async with connected_cluster(environment, settings, None) as (store, logs):
        gateway = Gateway(
            environment,
            store,
            logs,
            settings=settings.gateway,
            loghub=settings.loghub,
            metrics=Metrics(),
        )
        await gateway.start()
        try:
            # An attempt before, when too few stores were up, may have come so far.
            with contextlib.suppress(ProjectExists):
                await gateway.catalog.create_project(PROJECT)
            for stream in streams:
                with contextlib.suppress(LogstoreExists):
                    await gateway.catalog.create_logstore(
                        PROJECT, stream, shard_count=layout.groups
                    )
            made = await gateway.catalog.logstore(PROJECT, streams[0])
            key = await gateway.access.create({"*": AccessRole.ADMIN})
        finally:
            await gateway.close()
    _write(layout, "key.json", Key(key.id, key.secret))
    _write(layout, "streams.json", [each.log for each in made.shards])


def _write(layout: Layout, name: str, value: object) -> None:
    pathlib.Path(layout.folder, name).write_bytes(msgspec.json.encode(value))


async def _led_by(
    environment: Environment, settings: Settings, layout: Layout, logs: list[str]
) -> list[int | None]:
    stores = Stores(
        environment,
        operator_network(settings),
        dict(enumerate(layout.client_addresses(), 1)),
    )
    try:
        channel = await stores.connected(1, ASK_TIMEOUT_MS)
        found = [await channel.ask(LOCATE, log, ASK_TIMEOUT_MS) for log in logs]
    finally:
        await stores.close()
    return [each.leader - 1 if each.leader else None for each in found]
