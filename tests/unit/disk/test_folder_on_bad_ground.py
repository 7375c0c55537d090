"""A data folder whose place is new, forbidden, full or not a folder at all."""

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import DiskFull, InvalidInput, RaftwoodError, StoreError
from raftwood.base.files import Operation
from raftwood.disk.inspection import check_store
from raftwood.disk.real_environment import EXIT_CODE_ENDED, real_environment
from raftwood.disk.segment_log import Run
from raftwood.disk.store import DataFolder, Store
from raftwood.testing import ImmediateFiles
from raftwood.testing.file_system import LoseAll
from tests.kits.disk.log_in_memory import SMALL, WatchedFiles, environment_over, run
from tests.kits.running import run as run_on_a_real_loop


@pytest.mark.parametrize(
    "path", ["/data/store", "/data/new/parents/store", "/data/store/", "/data/a/b//"]
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


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EACCES, InvalidInput),
        (errno.EROFS, InvalidInput),
        (errno.EPERM, InvalidInput),
        (errno.ENAMETOOLONG, InvalidInput),
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EIO, StoreError),
        (errno.EMFILE, StoreError),
    ],
)
def test_no_error_of_the_disk_comes_out_unexplained(
    number: int, expected: type[RaftwoodError]
) -> None:
    """Each operation of opening and inspecting fails in turn."""

    async def main() -> None:
        for use in ("open", "check"):
            for fail_at in range(1000):
                files = WatchedFiles(lambda _: None)
                environment = environment_over(files)
                if use == "check":
                    store = await Store.open(
                        environment, "/data/s", cluster="c", store=1, settings=SMALL
                    )
                    await store.close()
                count = -1

                def watch(operation: Operation, fail_at: int = fail_at) -> None:
                    nonlocal count
                    if isinstance(operation, seam.Close):
                        return
                    count += 1
                    if count == fail_at:
                        raise OSError(number, os.strerror(number), "somewhere")

                files.watch = watch
                try:
                    if use == "check":
                        await check_store(environment, "/data/s")
                    else:
                        store = await Store.open(
                            environment, "/data/s", cluster="c", store=1, settings=SMALL
                        )
                        files.watch = lambda _: None
                        await store.close()
                except RaftwoodError as error:
                    assert isinstance(error, expected), (use, fail_at)
                    assert os.strerror(number) in error.message or "no room" in error.message
                    assert "/data/s" in error.message
                if count < fail_at:
                    assert fail_at > 5
                    break

    run(main())


def test_mistakes_with_real_paths_are_explained(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "file"
        file.write_text("")
        locked = tmp_path / "locked"
        (locked / "LOCK").mkdir(parents=True)
        with real_environment() as environment:
            for path in (str(file), str(file / "below"), "/proc/store", "x" * 300, "nul\0byte"):
                with pytest.raises(InvalidInput, match="cannot use"):
                    await DataFolder.open(environment, path, cluster="c", store=1)
                with pytest.raises(RaftwoodError):
                    await check_store(environment, path)
            with pytest.raises(RaftwoodError, match="LOCK"):
                await DataFolder.open(environment, str(locked), cluster="c", store=1)

    run_on_a_real_loop(main())


@pytest.mark.parametrize("stderr", ["None", "open(os.open('/dev/full', os.O_WRONLY), 'w')"])
def test_the_process_ends_even_if_nobody_can_be_told(stderr: str) -> None:
    script = (
        "import os, sys\n"
        "from raftwood.disk.real_environment import end_process\n"
        f"sys.stderr = {stderr}\n"
        "try:\n    end_process('sync failed')\nexcept BaseException:\n    os._exit(1)\n"
    )
    process = subprocess.run((sys.executable, "-c", script), check=False, timeout=30)
    assert process.returncode == EXIT_CODE_ENDED
