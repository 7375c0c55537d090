"""Engines of a simulated machine, whose copies are files that can be sent.

A checkpoint is one file of pairs, written through the machine's `Files`; an engine is opened from
such a file where its folder has one and the machine has not opened it before.
"""

import msgspec

from raftwood.base import files as seam
from raftwood.base.files import Files, perform
from raftwood.base.seams import KvEngine, Put
from raftwood.simulation import SimulatedKvDisk, SimulatedKvEngine

PAIRS = "PAIRS"


class SimulatedEngines:
    """Implements `Engines`."""

    def __init__(self, disk: SimulatedKvDisk, files: Files, path: str = "/data/engines") -> None:
        self._disk = disk
        self._files = files
        self._path = path

    def folder(self, name: str) -> str:
        return f"{self._path}/{name}"

    async def open(self, folder: str) -> KvEngine:
        is_known = self._disk.exists(folder)
        engine = self._disk.open(folder)
        (size,) = await perform(self._files, seam.Size(f"{folder}/{PAIRS}"))
        if not is_known and size is not None:
            (data,) = await perform(self._files, seam.Read(f"{folder}/{PAIRS}", 0, size))
            pairs = msgspec.msgpack.decode(data, type=list[tuple[bytes, bytes]])
            engine.write_batch([Put(key, value) for key, value in pairs])
            await engine.flush()
        return _Engine(engine, self._files)

    async def remove(self, name: str) -> None:
        self._disk.remove(self.folder(name))
        path = f"{self.folder(name)}/{PAIRS}"
        (size,) = await perform(self._files, seam.Size(path))
        if size is not None:
            await perform(self._files, seam.Unlink(path), seam.SyncDirectory(self.folder(name)))

    async def names(self) -> list[str]:
        (listed,) = await perform(self._files, seam.ListDirectory(self._path))
        prefix = f"{self._path}/"
        opened = [each[len(prefix) :] for each in self._disk.folders() if each.startswith(prefix)]
        return sorted({*(listed or ()), *opened})


class _Engine(SimulatedKvEngine):
    """The same engine, whose checkpoints are files."""

    def __init__(self, engine: SimulatedKvEngine, files: Files) -> None:
        self.__dict__ = engine.__dict__
        self._stored.engine = self
        self._files = files

    async def checkpoint(self, folder: str) -> None:
        await self.flush()
        data = msgspec.msgpack.encode(list(self._stored.durable.items()))
        path = f"{folder}/{PAIRS}"
        await perform(
            self._files,
            seam.MakeDirectory(folder),
            seam.Open(path, create=True),
            seam.Write(path, 0, [data]),
            seam.DataSync(path),
            seam.Close(path),
            seam.SyncDirectory(folder),
        )
