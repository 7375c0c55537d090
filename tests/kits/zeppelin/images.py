"""Crash images of a node of Zeppelin: commits, flushes, purges, rewinds, copies, tables dropped.

What must hold for each image: the node opens, and has the partitions that it was told to have, or
those before where that was not acked. Each partition is what it was after some commit that is not
older than the last one that was synced; where the operating system kept all that it had, not older
than the last one that was written.
"""

import asyncio
import random
from collections import deque
from typing import Any

from raftwood.base.errors import OutOfRange, RaftwoodError
from raftwood.base.files import Files
from raftwood.disk.segment_log import LogSettings
from raftwood.testing import CrashImage, ImageRunner, RecordingFiles, crash_images
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.node.store import NodeStore
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.records import BinlogPosition, BinlogRecord, EpochStart, KeyWrite
from raftwood.zeppelin.settings import StoreSettings
from tests.kits.disk.images import Broken, RecorderFactory, environment_over, spread
from tests.kits.zeppelin.engines import FileEngines
from tests.kits.zeppelin.stores import check_kept_up, write_one

LOG = LogSettings(
    segment_bytes=32 << 10, cache_bytes_max=0, flush_bytes_max=4 << 10, full_retry_ms=5
)
SETTINGS = StoreSettings(
    cache_bytes=4_000, flush_bytes=500, binlog_bytes_min=500, binlog_bytes_max=1_500
)
STEPS = 120
LIVES = 3
FOLDER = "/data/node"
NEVER = 10**15
"""When what expires does."""
Contents = tuple[int, int, dict[bytes, tuple[bytes, int]]]
"""The last sequence, its epoch, and what each key has."""
Holding = dict[PartitionId, str]


async def open_node(files: Files, seed: int) -> NodeStore:
    engines = FileEngines(files, random.Random(seed))
    return await NodeStore.open(
        environment_over(files, seed),
        FOLDER,
        engines,
        cluster="images",
        settings=SETTINGS,
        log_settings=LOG,
    )


def contents(store: StoredPartition) -> Contents:
    pairs = store.scan(after=None, now_ms=1)
    found = {key: (value.data, value.expires_ms) for key, value in pairs}
    return store.last_sequence, store.epoch, found


class _Life:
    """What is known of one partition."""

    def __init__(self, id_: PartitionId) -> None:
        self.id = id_
        self.states: list[Contents] = [(0, 0, {})]
        self.unsynced: deque[tuple[int, int]] = deque()
        self.unwritten: deque[tuple[int, int]] = deque()

    def add(self, state: Contents) -> None:
        number = len(self.states)
        self.states.append(state)
        self.unsynced.append((state[0], number))
        self.unwritten.append((state[0], number))


class NodeImages:
    """A recorded life of a node."""

    def __init__(self, seed: int, recorder: RecorderFactory = RecordingFiles) -> None:
        self._seed = seed
        self._runner = ImageRunner()
        self._recording = recorder()
        self._lives: dict[PartitionId, _Life] = {}
        self._holdings: list[Holding] = [{}]
        self._copies = 0

    def check(self, *, limit: int) -> int:
        """Open up to `limit` images, spread evenly; returns how many there were."""
        with self._runner:
            self._runner.run(self._record())
            images = crash_images(
                self._recording.journal, seed=self._seed, per_point=1, inside_writes=1
            )
            chosen = spread(list(images), self._seed, limit)
            for image in chosen:
                self._runner.run(self._check_image(image))
        return len(chosen)

    async def _record(self) -> None:
        rng = random.Random(self._seed)
        for life in range(LIVES):
            node = await open_node(self._recording, rng.getrandbits(30))
            if life == 0:
                await self._hold(node, {PartitionId(1, 0): "one", PartitionId(1, 1): "one"})
            stores = await self._open_all(node)
            for _ in range(STEPS // LIVES):
                stores = await self._step(rng, node, stores)
                await asyncio.sleep(rng.choice((0.0, 0.0, 0.0, 0.02, 1.0)))
            await node.close()
            for store in stores:
                self._heard(store, self._lives[store.home.partition])

    async def _open_all(self, node: NodeStore) -> list[StoredPartition]:
        stores = []
        for partition in node.held():
            store = await node.partition(partition)
            life = self._lives.setdefault(partition, _Life(partition))
            store.ack = "synced" if partition.number else "written"
            self._listen(store, life)
            stores.append(store)
        return stores

    def _listen(self, store: StoredPartition, life: _Life) -> None:
        store.listen(lambda: self._heard(store, life))

    def _heard(self, store: StoredPartition, life: _Life) -> None:
        for kind, waiting, reached in (
            ("synced", life.unsynced, store.synced_sequence),
            ("written", life.unwritten, store.written_sequence),
        ):
            while waiting and waiting[0][0] <= reached:
                self._recording.mark((kind, life.id, waiting.popleft()[1]))

    async def _hold(self, node: NodeStore, holding: Holding) -> None:
        self._holdings.append(holding)
        await node.hold(holding, epoch=len(self._holdings))
        self._recording.mark(("hold", None, len(self._holdings) - 1))

    async def _step(
        self, rng: random.Random, node: NodeStore, stores: list[StoredPartition]
    ) -> list[StoredPartition]:
        store, draw = rng.choice(stores), rng.random()
        life = self._lives[store.home.partition]
        if draw < 0.8:
            self._commit(rng, store, life)
        elif draw < 0.84:
            await store.maintain()
        elif draw < 0.9:
            await store.engine.flush()
            await store.purge(before=store.last_sequence - rng.randrange(4))
        elif draw < 0.94:
            await self._rewind(rng, store, life)
        elif draw < 0.97:
            await self._copy(store, life)
        else:
            incarnation = len(self._holdings) + 1
            kept = {each: "one" for each in node.held() if each.number == 0}
            await self._hold(node, {**kept, PartitionId(incarnation, 1): "again"})
            return await self._open_all(node)
        return stores

    def _commit(self, rng: random.Random, store: StoredPartition, life: _Life) -> None:
        _, _, before = life.states[-1]
        after = {} if (flushes := rng.random() < 0.05) else dict(before)
        writes = []
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            key, draw = b"%d" % rng.randrange(12), rng.random()
            if draw < 0.25:
                writes.append(KeyWrite(key, None))
                after.pop(key, None)
            else:
                data, expires = rng.randbytes(rng.randrange(60)), NEVER if draw > 0.8 else 0
                writes.append(KeyWrite(key, data, expires))
                after[key] = (data, expires)
        epoch = max(1, store.epoch + (rng.random() < 0.05))
        if writes and not flushes and len(life.states) % 2:
            for write in writes:  # all of one turn, and so of one record
                write_one(store, write, epoch=epoch)
        else:
            store.commit(BinlogRecord(epoch, store.last_sequence + 1, tuple(writes), flushes))
        life.add((store.last_sequence, epoch, after))

    async def _rewind(self, rng: random.Random, store: StoredPartition, life: _Life) -> None:
        lowest = max(store.first_sequence - 1, store.last_sequence - 6)
        after = rng.randint(lowest, store.last_sequence)
        touched = await store.touched(after=after)
        if touched is None:
            return
        values = [KeyWrite(key, rng.choice((None, b"rewound"))) for key in touched]
        sequence, _, pairs = life.states[-1]
        pairs = {key: value for key, value in pairs.items() if key not in touched}
        pairs |= {write.key: (write.data, 0) for write in values if write.data is not None}
        epochs = [each.epoch for each in store.epochs if each.sequence <= after]
        life.states.append((after, epochs[-1] if epochs else 0, pairs))
        until = BinlogPosition(store.epoch + 1, sequence + 1)
        await store.rewind(after=after, values=values, until=until)
        self._replaced(life)

    async def _copy(self, store: StoredPartition, life: _Life) -> None:
        """Taken, made older by further commits, and put back."""
        self._copies += 1
        folder = f"/data/engines/copy-{self._copies}"
        sequence = await store.checkpoint(folder)
        epochs: list[EpochStart] = list(store.epochs)
        copied = life.states[-1]
        # A binlog that no longer fits the copy, as that of another past.
        for number in range(3):
            self._commit(random.Random(self._copies * 10 + number), store, life)
            await store.settle()
        await store.engine.flush()
        await store.purge(before=store.last_sequence)
        life.states.append(copied)
        await store.restore(folder, sequence=sequence, epochs=epochs)
        self._replaced(life)

    def _replaced(self, life: _Life) -> None:
        """Durable, and whatever was on its way no longer counts."""
        life.unsynced.clear()
        life.unwritten.clear()
        self._recording.mark(("synced", life.id, len(life.states) - 1))

    async def _check_image(self, image: CrashImage) -> None:
        place = f"seed {self._seed}, point {image.point}, {image.kind}"
        acked: dict[Any, int] = {}
        for kind, partition, number in image.marks:
            if kind != "written" or image.kind == "all kept":
                acked[partition] = max(number, acked.get(partition, 0))
        try:
            node = await open_node(image.files, 1)
            held = node.held()
            if held not in self._holdings[acked.get(None, 0) :]:
                raise Broken(f"{place}: it holds {held}, which it was not told, or was before")
            for partition in held:
                life = self._lives.get(partition) or _Life(partition)
                store = await node.partition(partition)
                found = contents(store)
                first = acked.get(partition, 0)
                if found not in life.states[first:]:
                    raise Broken(
                        f"{place}: {partition} came back as it never was, or without what was "
                        f"acked: {found[:2]}, acked {life.states[first][:2]}"
                    )
                await self._check_binlog(store, place)
                try:
                    check_kept_up(store.engine)
                except AssertionError as error:
                    raise Broken(f"{place}: {partition}: {error}") from error
                if store.engine.is_counted and await store.count() != len(found[2]):
                    raise Broken(f"{place}: {partition} counts {await store.count()} keys")
            await node.close()
        except RaftwoodError as error:
            raise Broken(f"{place}: {error.message}") from error

    async def _check_binlog(self, store: StoredPartition, place: str) -> None:
        sequence = store.first_sequence
        while sequence <= store.last_sequence:
            sequence += len(await store.records(first=sequence, bytes_max=4096))
        try:
            await store.records(first=store.first_sequence - 1, bytes_max=1)
        except OutOfRange:
            return
        raise Broken(f"{place}: there are records before the first")
