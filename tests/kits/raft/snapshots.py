"""Snapshots on a disk in memory, for their tests."""

from collections.abc import Iterator, Mapping

from raftwood.base import files as seam
from raftwood.base.files import Files, perform
from raftwood.raft.core import ConfState
from raftwood.raft.snapshot_files import (
    ExtraFileList,
    SnapshotFiles,
    SnapshotReader,
    StoredSnapshot,
)
from raftwood.raft.snapshot_format import SnapshotMeta
from raftwood.testing import ImmediateFiles

FOLDER = "/data/snapshots"
PIECE_BYTES = 256
"""Small, so that a small snapshot has many pieces."""


def meta_of(group: int = 1, index: int = 10, term: int = 3) -> SnapshotMeta:
    addresses = {1: "one:7000", 2: "two:7000"}
    return SnapshotMeta(group, index, term, ConfState((1, 2), (3,)), addresses, b"sessions")


def never() -> bool:
    return False


async def recover(files: Files) -> SnapshotFiles:
    return await SnapshotFiles.recover(files, FOLDER, piece_bytes=PIECE_BYTES)


async def write_file(files: Files, path: str, data: bytes) -> None:
    await perform(
        files, seam.Open(path, create=True), seam.Write(path, 0, [data]), seam.Close(path)
    )


async def save(
    snapshots: SnapshotFiles,
    files: Files,
    meta: SnapshotMeta,
    chunks: list[bytes],
    extra: Mapping[str, bytes] | None = None,
) -> StoredSnapshot:
    """Save chunks and extra files, as a state machine would hand them over."""
    collected = ExtraFileList()

    def state() -> Iterator[bytes]:
        yield from chunks
        for name in extra or ():
            collected.add(name, f"/data/{name}")

    for name, data in (extra or {}).items():
        await write_file(files, f"/data/{name}", data)
    stored = await snapshots.save(meta, state(), collected, never)
    assert stored is not None
    return stored


async def contents(reader: SnapshotReader, files: Files) -> tuple[list[bytes], dict[str, bytes]]:
    """All that a state machine gets from a snapshot."""
    extra = {}
    for name, path in (await reader.extract_extra()).items():
        size, data = await perform(files, seam.Size(path), seam.Read(path, 0, 1 << 24))
        assert size == len(data)
        extra[name] = bytes(data)
    return [chunk async for chunk in reader.chunks()], extra


async def raw(reader: SnapshotReader, piece_bytes: int = 1 << 20) -> bytes:
    """The container's bytes, read as for another store."""
    pieces = [
        bytes(await reader.read_raw(offset, piece_bytes))
        for offset in range(0, reader.size, piece_bytes)
    ]
    return b"".join(pieces)


async def receive(snapshots: SnapshotFiles, meta: SnapshotMeta, data: bytes, size: int) -> None:
    """Take a container in, in pieces of a size."""
    receiver = await snapshots.begin_receive(
        group=meta.group, index=meta.index, term=meta.term, size=len(data), sender=2
    )
    for offset in range(0, len(data), size):
        await receiver.write(offset, data[offset : offset + size])
    await receiver.finish()


def names(files: ImmediateFiles) -> list[str]:
    """What is in the folder."""
    listed: list[str] = files.file_system.apply(files.session, seam.ListDirectory(FOLDER))
    return listed
