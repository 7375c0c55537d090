"""A table whose partitions are split while it is backed up: each slot is in the backup once."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from raftwood.base.errors import Conflict
from raftwood.zeppelin import backup
from raftwood.zeppelin.backup import back_up
from raftwood.zeppelin.backup_format import BackupFolder
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.client.checkpoints import AsyncCheckpoint, CheckpointAbout, PartitionPlace
from raftwood.zeppelin.pages import Page, encode_page
from raftwood.zeppelin.records import BinlogPosition
from raftwood.zeppelin.slots import SLOTS
from tests.kits.running import run


class SplittingTable:
    """Has a key for each slot; some of its partitions are split while it is read."""

    def __init__(self, splits: int) -> None:
        self._splits = splits
        self._ranges = [range(SLOTS // 2), range(SLOTS // 2, SLOTS)]
        self._begun = 0

    async def partitions(self) -> list[PartitionPlace]:
        return [
            PartitionPlace(
                incarnation=1, number=number, first_slot=each[0], last_slot=each[-1], master="a:1"
            )
            for number, each in enumerate(self._ranges)
        ]

    async def checkpoint(self, partition: int, *, ttl_ms: int) -> AsyncCheckpoint:  # noqa: ARG002
        self._begun += 1
        slots = self._ranges[partition]
        about = CheckpointAbout(
            id=f"c{self._begun}",
            address="a:1",
            incarnation=1,
            partition=partition,
            position=BinlogPosition(1, self._begun),
            first_slot=slots[0],
            last_slot=slots[-1],
            taken_ms=1,
        )
        if self._splits and partition == 0:
            self._splits -= 1
            middle = len(slots) // 2
            self._ranges[0] = slots[:middle]
            self._ranges.append(slots[middle:])
        return self.checkpoint_of(about)

    def checkpoint_of(self, about: CheckpointAbout) -> AsyncCheckpoint:
        return cast("AsyncCheckpoint", _Checkpoint(about))


class _Checkpoint:
    def __init__(self, about: CheckpointAbout) -> None:
        self.about = about
        self.partition = about.partition

    async def pages(self, _: bytes, *, bytes_max: int) -> AsyncGenerator[Page, None]:  # noqa: ARG002
        keys = [b"%d" % slot for slot in range(self.about.first_slot, self.about.last_slot + 1)]
        yield Page.decoded(encode_page(keys, keys, []))

    async def end(self) -> None:
        pass


@pytest.mark.parametrize("splits", [0, 1, 3])
def test_each_slot_is_in_a_backup_once_though_partitions_are_split(
    splits: int, tmp_path: Path
) -> None:
    async def main() -> None:
        kv = cast("AsyncKv", SplittingTable(splits))
        manifest = await back_up(kv, BackupFolder(str(tmp_path)), parallel=1)
        assert manifest.pairs == SLOTS
        assert len(manifest.partitions) == 2 + splits
        # What was read of a partition before it was split is gone.
        assert {each.name for each in (tmp_path / "data").iterdir()} == {
            file.name.rpartition("/")[2] for file in manifest.files
        }

    run(main())


def test_a_table_that_is_split_all_the_time_is_backed_up_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "ROUNDS_MAX", 2)

    async def main() -> None:
        with pytest.raises(Conflict, match="split all the time"):
            await back_up(cast("AsyncKv", SplittingTable(9)), BackupFolder(str(tmp_path)))

    run(main())
