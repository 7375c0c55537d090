"""What nodes keep partitions in: images in memory, or the real thing on a simulated disk."""

from collections.abc import Sequence
from typing import Protocol

from raftwood.base.environment import Environment
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.node.node_store import NodeStore
from raftwood.zeppelin.node.seams import PartitionStore
from raftwood.zeppelin.node.store_settings import StoreSettings
from tests.zeppelin_kit.engines import FileEngines
from tests.zeppelin_kit.image_store import Image, ImageStore
from tests.zeppelin_kit.stores import LOG

ENGINES = "/data/engines"


class Storage(Protocol):
    """The stores of one run of a node."""

    async def open(self) -> None: ...

    async def partitions(self, wanted: Sequence[PartitionId]) -> dict[PartitionId, PartitionStore]:
        """All that the node has."""
        ...

    async def close(self) -> None: ...


class ImageStorage:
    """Images; cheap."""

    def __init__(
        self,
        images: dict[PartitionId, Image],
        environment: Environment,
        *,
        records_max: int | None,
    ) -> None:
        self._images = images
        self._environment = environment
        self._records_max = records_max
        self._open: dict[PartitionId, PartitionStore] = {}

    async def open(self) -> None:
        pass

    async def partitions(self, wanted: Sequence[PartitionId]) -> dict[PartitionId, PartitionStore]:
        self._open = {partition: self._store(partition) for partition in wanted}
        return self._open

    def _store(self, partition: PartitionId) -> ImageStore:
        return ImageStore(
            self._images.setdefault(partition, Image()),
            self._environment,
            records_max=self._records_max,
        )

    async def close(self) -> None:
        for store in self._open.values():
            await store.close()


class DiskStorage:
    """A node's folder as it is: a segment log for all binlogs, an engine for each partition."""

    def __init__(self, environment: Environment, settings: StoreSettings) -> None:
        self._environment = environment
        self._settings = settings
        self._node: NodeStore | None = None

    async def open(self) -> None:
        engines = FileEngines(self._environment.files, self._environment.random, ENGINES)
        self._node = await NodeStore.open(
            self._environment,
            "/data/node",
            engines,
            cluster="simulated",
            settings=self._settings,
            log_settings=LOG,
        )

    async def partitions(self, wanted: Sequence[PartitionId]) -> dict[PartitionId, PartitionStore]:
        node = self._node
        assert node is not None
        if sorted(node.held()) != sorted(wanted):
            await node.hold(dict.fromkeys(wanted, "table"), epoch=1)
        found: dict[PartitionId, PartitionStore] = {}
        for partition in wanted:
            found[partition] = await node.partition(partition)
        return found

    async def close(self) -> None:
        if self._node is not None:
            await self._node.close()
