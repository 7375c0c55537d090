"""Checkpoints on their way to the store: what comes during one call goes with the next."""

import asyncio
from collections.abc import Callable, Sequence

from raftwood.base.errors import RaftwoodError
from raftwood.loghub.consumer.errors import LeaseLost
from raftwood.loghub.consumer.lease_store import LeaseStore
from raftwood.loghub.consumer.leases import Save


class _Round:
    """Checkpoints that are saved by one call, the newest of each shard."""

    def __init__(self) -> None:
        self.saves: dict[str, Save] = {}
        self.is_done = False
        self.refused: Sequence[str] = ()
        self.error: RaftwoodError | None = None


class CheckpointWriter:
    """Of one worker; `on_refused` is told of each that belongs to another by now."""

    def __init__(self, store: LeaseStore, process: str, on_refused: Callable[[Save], None]) -> None:
        self._store = store
        self._process = process
        self._on_refused = on_refused
        self._gathering = _Round()
        self._lock = asyncio.Lock()

    async def save(self, saves: Sequence[Save]) -> None:
        """Returns when they are stored; `LeaseLost` where one was refused."""
        shared = self._gathering
        for save in saves:
            before = shared.saves.get(save.shard)
            if before is None or (before.epoch, before.seq) < (save.epoch, save.seq):
                shared.saves[save.shard] = save
        async with self._lock:
            if not shared.is_done:
                await self._write(shared)
        if shared.error is not None:
            raise type(shared.error)(shared.error.message) from shared.error
        refused = [save.shard for save in saves if save.shard in shared.refused]
        if refused:
            raise LeaseLost(f"shards {', '.join(refused)} are consumed by another worker by now")

    async def _write(self, shared: _Round) -> None:
        self._gathering = _Round()
        try:
            shared.refused = await self._store.save(self._process, list(shared.saves.values()))
        except RaftwoodError as error:
            shared.error = error
        shared.is_done = True
        for shard in shared.refused:
            self._on_refused(shared.saves[shard])
