"""Gateways in the test's process: metadata in a folder, logs in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.base.seams import Logs, MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.batches import Batch
from raftwood.loghub.log_groups import LogGroup
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.settings import GatewaySettings, LogHubSettings
from raftwood.metastore.file_store import FileMetaStore
from tests.kits.loghub.memory_logs import MemoryLogs


class GatewayKit(msgspec.Struct):
    """What gateways share, and those that were made."""

    environment: Environment
    store: MetaStore
    logs: Logs
    settings: GatewaySettings = GatewaySettings()
    loghub: LogHubSettings = LogHubSettings()
    gateways: list[Gateway] = []

    async def gateway(self) -> Gateway:
        """One more; it is closed with the kit."""
        made = Gateway(
            self.environment,
            self.store,
            self.logs,
            settings=self.settings,
            loghub=self.loghub,
            metrics=Metrics(),
        )
        await made.start()
        self.gateways.append(made)
        return made

    async def admin(self) -> AccessKey:
        """A key that may do all."""
        return await self.gateways[0].access.create({"*": AccessRole.ADMIN})


@asynccontextmanager
async def gateway_kit(
    folder: Path,
    *,
    settings: GatewaySettings | None = None,
    loghub: LogHubSettings | None = None,
) -> AsyncIterator[GatewayKit]:
    with real_environment() as environment:
        store = await FileMetaStore.open(environment, str(folder / "metastore"))
        kit = GatewayKit(
            environment,
            store,
            MemoryLogs(),
            settings or GatewaySettings(),
            loghub or LogHubSettings(),
        )
        try:
            yield kit
        finally:
            for gateway in kit.gateways:
                await gateway.close()
            await store.close()


def log_group(*values: str, topic: str = "") -> Batch:
    """A batch of records with one content each."""
    group = LogGroup(Topic=topic.encode())
    for number, value in enumerate(values):
        group.Logs.add(Time=number).Contents.add(Key=b"message", Value=value.encode())
    body = group.SerializeToString()
    return Batch(body=body, raw_bytes=len(body), records=len(values))


def values_of(body: bytes) -> list[str]:
    """The first content of each record."""
    return [each.Contents[0].Value.decode() for each in LogGroup.FromString(body).Logs]
