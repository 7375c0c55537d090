"""Folders of a node's storage engines, and which one is a partition's.

An engine is a folder of its own. Which folder is a partition's stands in its group's state in the
log, in one write with whatever else that changes; a folder that no state names is nobody's.
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
"""Where a node's engines are, in its data folder."""
OWN_GROUP: Final = (1 << 63) - 1
"""No partition's: its state is the node's own."""


class Engines(Protocol):
    """Storage engines by the names of their folders."""

    def folder(self, name: str) -> str:
        """The path of a folder."""
        ...

    async def open(self, folder: str, *, is_read_only: bool = False) -> KvEngine:
        """Opens the engine in a folder, making both where they are missing.

        One that is only read stays as it is on the disk.
        """
        ...

    async def remove(self, name: str) -> None:
        """The folder and all in it; nothing where there is none."""
        ...

    async def names(self) -> list[str]:
        """Of all folders, in order."""
        ...


class HeldEngine(msgspec.Struct, frozen=True, array_like=True):
    """What a group's state tells of the partition."""

    version: int
    table: str
    engine: str
    """The name of its folder."""


def group_of(partition: PartitionId) -> int:
    """No two tables have one incarnation, so no two partitions ever have one group."""
    return partition.incarnation * PARTITIONS_MAX + partition.number


def partition_of(group: int) -> PartitionId:
    return PartitionId(*divmod(group, PARTITIONS_MAX))


def first_engine(partition: PartitionId, *, epoch: int) -> str:
    """Of a partition that a node has from an epoch on: another each time that it gets it, so that
    nothing of an earlier time is ever taken for it.
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
    """Where the engine of one partition is."""

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
        """Its own, or a copy that is to take its place."""
        if folder != self._engines.folder(_name(folder)):
            raise InvalidInput(
                f"{folder} is not where engines are: put a copy into "
                f"{self._engines.folder(_name(folder))}"
            )
        return await self._engines.open(folder)

    async def move(self, folder: str, *, sequence: int) -> None:
        """From now on this is the engine, and the binlog begins behind a sequence; durable."""
        group = group_of(self.partition)
        held = HeldEngine(VERSION, self.held.table, _name(folder))
        await self._log.commit(
            DropGroup(group), SetState(group, encode_held(held)), TruncateHead(group, sequence)
        )
        self.held = held

    async def remove(self, folder: str) -> None:
        """An engine that another one has taken the place of."""
        await self._engines.remove(_name(folder))


def _name(folder: str) -> str:
    return folder.rpartition("/")[2]
