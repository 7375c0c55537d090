"""Folders of a node's storage engines, and the folder of each partition.

Each engine has a folder of its own. The state of a partition's group in the log names its folder,
and one write changes the name together with the rest. A folder that no state names is garbage.
"""

from typing import Final, Protocol

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.base.seams import KvEngine
from raftwood.base.versions import decode_versioned
from raftwood.disk.segment_log import DropGroup, SegmentLog, SetState, TruncateHead
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.slots import PARTITIONS_MAX

VERSION: Final = 1
ENGINES_FOLDER: Final = "engines"
"""The folder of a node's engines, inside its data folder."""
OWN_GROUP: Final = (1 << 63) - 1
"""The group of no partition: its state is the node's own."""


class Engines(Protocol):
    """Storage engines by the names of their folders."""

    def folder(self, name: str) -> str:
        """Returns the path of a folder."""
        ...

    async def open(self, folder: str, *, is_read_only: bool = False) -> KvEngine:
        """Opens the engine in a folder, making both where they are missing.

        A read-only engine is not changed on the disk.
        """
        ...

    async def remove(self, name: str) -> None:
        """Removes a folder and everything in it, if it exists."""
        ...

    async def names(self) -> list[str]:
        """Returns the names of all folders, in order."""
        ...


class HeldEngine(msgspec.Struct, frozen=True, array_like=True):
    """The state of a partition's group."""

    version: int
    table: str
    engine: str
    """Name of its folder."""


def group_of(partition: PartitionId) -> int:
    """Returns a partition's group, unique because incarnations of tables are."""
    return partition.incarnation * PARTITIONS_MAX + partition.number


def partition_of(group: int) -> PartitionId:
    return PartitionId(*divmod(group, PARTITIONS_MAX))


def first_engine(partition: PartitionId, *, epoch: int) -> str:
    """Names the folder of a partition that a node has from an epoch on. The epoch makes the name
    new, so that an earlier engine is never mistaken for it.
    """
    return f"{partition.incarnation}-{partition.number}-{epoch}"


def encode_held(held: HeldEngine) -> bytes:
    return msgspec.msgpack.encode(held)


def decode_held(data: bytes, *, group: int) -> HeldEngine:
    return decode_versioned(
        data,
        HeldEngine,
        version=VERSION,
        name=f"what the log keeps of partition {partition_of(group)}",
    )


class EngineFolders:
    """Finds and replaces the engine of one partition."""

    def __init__(
        self, engines: Engines, log: SegmentLog, partition: PartitionId, held: HeldEngine
    ) -> None:
        self._engines = engines
        self._log = log
        self.partition = partition
        self.held = held

    @property
    def folder(self) -> str:
        return self._engines.folder(self.held.engine)

    async def open(self, folder: str) -> KvEngine:
        """Opens the partition's engine, or a copy that is to replace it."""
        if folder != self._engines.folder(_name(folder)):
            raise InvalidInput(
                f"{folder} is not where engines are: put a copy into "
                f"{self._engines.folder(_name(folder))}"
            )
        return await self._engines.open(folder)

    async def move(self, folder: str, *, sequence: int) -> None:
        """Makes a folder the partition's engine; the binlog begins behind a sequence. Durable."""
        group = group_of(self.partition)
        held = HeldEngine(VERSION, self.held.table, _name(folder))
        await self._log.commit(
            DropGroup(group), SetState(group, encode_held(held)), TruncateHead(group, sequence)
        )
        self.held = held

    async def remove(self, folder: str) -> None:
        """Removes an engine that was replaced."""
        await self._engines.remove(_name(folder))


def _name(folder: str) -> str:
    return folder.rpartition("/")[2]
