"""A data folder whose place is new, forbidden, full or not a folder at all."""

import errno
import random

import pytest

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.disk.segment_log import Run
from raftwood.disk.store import Store
from raftwood.simulation import ImmediateFiles
from raftwood.simulation.survival import LoseAll
from tests.unit.disk.log_in_memory import SMALL, WatchedFiles, environment_over, run


@pytest.mark.parametrize(
    "path",
    ["/data/store", "/data/new/parents/store", "/data/store/", "/data/a/b/", "/data/store//"],
)
def test_an_acked_write_survives_a_power_loss_wherever_the_folder_is(path: str) -> None:
    async def main() -> None:
        files = ImmediateFiles()
        environment = environment_over(files)
        store = await Store.open(environment, path, cluster="c", store=1, settings=SMALL)
        await store.log.commit(Run(1, 1, 1, 1, b"acked"))
        image = ImmediateFiles(files.file_system.after_power_loss(LoseAll(random.Random(0))))
        await store.close()
        store = await Store.open(
            environment_over(image), path, cluster="c", store=1, settings=SMALL
        )
        assert store.log.groups() == [1]
        await store.close()

    run(main())


def test_a_parent_that_may_not_be_read_need_not_be_synced() -> None:
    def watch(operation: Operation) -> None:
        if isinstance(operation, seam.SyncDirectory) and operation.path == "/":
            raise OSError(errno.EACCES, "Permission denied", "/")

    async def main() -> None:
        environment = environment_over(WatchedFiles(watch))
        store = await Store.open(environment, "/data/a/b", cluster="c", store=1, settings=SMALL)
        await store.close()

    run(main())
