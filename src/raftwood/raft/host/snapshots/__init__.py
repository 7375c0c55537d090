"""Raft snapshots on a store's disk: saved, received from another store, read and removed.

    snapshots = await SnapshotFiles.recover(environment.files, f"{data}/snapshots")
    extra = ExtraFileList()
    chunks = machine.save_snapshot(extra, stopped)
    stored = await snapshots.save(meta, chunks, extra, stopped)
    async with await snapshots.open(stored.group, stored.index) as reader:
        files = await reader.extract_extra()
        await machine.recover_from_snapshot(reader.chunks(), files, stopped)

Start with `container` (the bytes), then `store`, whose parts are `writing`, `reading` and
`receiving`.
"""

from raftwood.raft.host.snapshots.container import CHUNK_BYTES_MAX, META_BYTES_MAX, SnapshotMeta
from raftwood.raft.host.snapshots.reading import RAW_BYTES_MAX, SnapshotReader
from raftwood.raft.host.snapshots.receiving import Announced, Receiver
from raftwood.raft.host.snapshots.store import SnapshotFiles, StoredSnapshot
from raftwood.raft.host.snapshots.writing import ExtraFileList

__all__ = [
    "CHUNK_BYTES_MAX",
    "META_BYTES_MAX",
    "RAW_BYTES_MAX",
    "Announced",
    "ExtraFileList",
    "Receiver",
    "SnapshotFiles",
    "SnapshotMeta",
    "SnapshotReader",
    "StoredSnapshot",
]
