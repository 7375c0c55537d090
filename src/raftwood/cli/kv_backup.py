"""`raftwood kv backup` and `restore`: a table in a folder or an object store, and back."""

import os
from typing import Annotated, Final

from cyclopts import App, Parameter

from raftwood.base.text import BYTES
from raftwood.cli.kv import USER, KvUser
from raftwood.cli.options import quantity_of
from raftwood.cli.output import Format, ProgressBar, size_text, write_rows
from raftwood.disk.real_environment import real_environment
from raftwood.server.event_loop import run
from raftwood.zeppelin.backup import PARALLEL, BackupProgress, back_up
from raftwood.zeppelin.backup_format import BackupFolder, TableManifest
from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.restore import OnRestoreProgress, RestoreProgress, restore, verify

app = App(
    name="backup", help="Write a table into a folder or an object store.", help_format="plaintext"
)

_COLUMNS: Final = {
    "partitions": "partitions",
    "keys": "keys",
    "files": "files",
    "bytes": "bytes",
}
_RESTORED: Final = {
    "keys": "keys",
    "expired": "expired since",
    "files": "files",
}
_PLACE: Final = "A folder, or a URI such as s3://bucket/folder."
_RATE: Final = 'So many bytes a second at most, as "50MB".'

Rate = Annotated[str | None, Parameter(help=_RATE)]
Parallel = Annotated[int, Parameter(help="Partitions, or files, at a time.")]


@app.default
def backup(
    *,
    to: Annotated[str, Parameter(help=_PLACE)],
    rate: Rate = None,
    parallel: Parallel = PARALLEL,
    user: KvUser = USER,
) -> int:
    """Write a table into a folder or an object store, each partition as of one moment.

    Where it was interrupted, the same command goes on with it.
    """

    async def work(kv: AsyncKv) -> int:
        with ProgressBar("backing up") as bar:

            def told(progress: BackupProgress) -> None:
                bar.show(
                    progress.finished,
                    progress.partitions,
                    f"{progress.finished} of {progress.partitions} partitions, "
                    f"{progress.pairs:,} keys, {size_text(progress.raw_bytes)}",
                    progress.raw_bytes,
                )

            manifest = await back_up(
                kv, BackupFolder(to), parallel=parallel, bytes_per_s=_rate(rate), told=told
            )
        _show(manifest, user.output)
        return 0

    return user.run(work)


@app.command(name="verify")
def verify_(
    *,
    from_: Annotated[str, Parameter(name="--from", help=_PLACE)],
    parallel: Parallel = PARALLEL,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> int:
    """Read a backup and say which files are missing or not as they were written."""

    async def work() -> TableManifest:
        with ProgressBar("reading the backup") as bar:
            return await verify(BackupFolder(from_), told=_teller(bar), parallel=parallel)

    _show(run(work()), output)
    return 0


def restore_(
    *,
    from_: Annotated[str, Parameter(name="--from", help=_PLACE)],
    rate: Rate = None,
    parallel: Parallel = PARALLEL,
    keep: Annotated[
        bool,
        Parameter(negative="", help="The table may have keys; those of the backup replace them."),
    ] = False,
    progress: Annotated[
        str | None,
        Parameter(help="A file that says how far it is, so that the same command goes on."),
    ] = None,
    user: KvUser = USER,
) -> int:
    """Write a backup into the table of a user, which is to be empty.

    It may have other partitions and replicas than the one that was backed up.
    """
    path = None if progress is None else os.path.abspath(progress)

    async def work(kv: AsyncKv) -> int:
        with ProgressBar("restoring") as bar, real_environment() as environment:
            done = await restore(
                kv,
                BackupFolder(from_),
                environment.clock,
                parallel=parallel,
                bytes_per_s=_rate(rate),
                may_have_keys=keep,
                progress_file=path,
                told=_teller(bar),
            )
        row = {"keys": done.restored, "expired": done.expired, "files": done.files}
        write_rows([row], _RESTORED, user.output)
        return 0

    return user.run(work)


def _teller(bar: ProgressBar) -> OnRestoreProgress:
    def told(progress: RestoreProgress) -> None:
        bar.show(
            progress.finished,
            progress.files,
            f"{progress.finished} of {progress.files} files, {progress.restored:,} of "
            f"{progress.pairs:,} keys, {size_text(progress.raw_bytes)}",
            progress.raw_bytes,
        )

    return told


def _rate(text: str | None) -> int | None:
    return None if text is None else quantity_of("--rate", text, BYTES)


def _show(manifest: TableManifest, output: Format) -> None:
    row = {
        "partitions": len(manifest.partitions),
        "keys": manifest.pairs,
        "files": len(manifest.files),
        "bytes": sum(file.bytes for file in manifest.files),
        "positions": {
            str(each.about.partition): [each.about.position.epoch, each.about.position.sequence]
            for each in manifest.partitions
        },
    }
    write_rows([row], _COLUMNS, output)
