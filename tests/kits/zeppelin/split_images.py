"""Crash images of a node that splits a partition off another one.

What must hold for each: the node has both, or the one with all that it had, of which the other can
be made again; and none of them lacks a key, or has one of the other's.
"""

import random

from raftwood.testing import CrashImage, ImageRunner, RecordingFiles, crash_images
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.node.readable_partition import KeyShare
from raftwood.zeppelin.node.store import NodeStore, Split
from raftwood.zeppelin.node.stored_partition import StoredPartition
from raftwood.zeppelin.records import BinlogPosition
from raftwood.zeppelin.slots import SLOTS, slot_of
from tests.kits.disk.images import Broken, RecorderFactory, spread
from tests.kits.zeppelin.images import open_node
from tests.kits.zeppelin.stores import check_kept_up, contents, put

PARENT, CHILD = PartitionId(1, 0), PartitionId(1, 1)
HALVES = {PARENT: range(SLOTS // 2), CHILD: range(SLOTS // 2, SLOTS)}
KEYS = [b"%d" % number for number in range(24)]


async def _split(node: NodeStore, at: BinlogPosition) -> None:
    splits = {CHILD: Split(PARENT, at, HALVES[CHILD])}
    await node.hold({PARENT: "t", CHILD: "t"}, epoch=2, splits=splits)


async def _opened(node: NodeStore, at: BinlogPosition) -> dict[PartitionId, StoredPartition]:
    stores = {each: await node.partition(each) for each in HALVES}
    for partition, store in stores.items():
        store.own(KeyShare(HALVES[partition], at.sequence))
    return stores


class SplitImages:
    """A recorded split, with some keys before and after it."""

    def __init__(self, seed: int, recorder: RecorderFactory = RecordingFiles) -> None:
        self._seed = seed
        self._runner = ImageRunner()
        self._recording = recorder()
        self._at = BinlogPosition()

    def check(self, *, limit: int) -> int:
        """Open up to `limit` images, spread evenly; returns how many there were."""
        with self._runner:
            self._runner.run(self._record())
            images = crash_images(
                self._recording.journal, seed=self._seed, per_point=1, inside_writes=1
            )
            begun = [image for image in images if ("full", None, 0) in image.marks]
            chosen = spread(begun, self._seed, limit)
            for image in chosen:
                self._runner.run(self._check_image(image))
        return len(chosen)

    async def _record(self) -> None:
        rng = random.Random(self._seed)
        node = await open_node(self._recording, rng.getrandbits(30))
        await node.hold({PARENT: "t"}, epoch=1)
        parent = await node.partition(PARENT)
        for key in KEYS:
            put(parent, key, b"before")
            if rng.random() < 0.1:
                await parent.settle()
        self._at = BinlogPosition(parent.epoch, parent.last_sequence)
        await parent.settle()
        self._recording.mark(("full", None, 0))
        await _split(node, self._at)
        self._recording.mark(("split", None, 0))
        stores = await _opened(node, self._at)
        for _ in range(4):
            for partition, store in stores.items():
                mine = [key for key in KEYS if slot_of(key) in HALVES[partition]]
                put(store, rng.choice(mine), b"after")
                await store.settle()
                await store.maintain()
        await node.close()

    async def _check_image(self, image: CrashImage) -> None:
        place = f"seed {self._seed}, point {image.point}, {image.kind}"
        node = await open_node(image.files, 1)
        if CHILD not in node.held():
            if ("split", None, 0) in image.marks:
                raise Broken(f"{place}: the split was not kept")
            await _split(node, self._at)
        for partition, store in (await _opened(node, self._at)).items():
            found, mine = contents(store), [k for k in KEYS if slot_of(k) in HALVES[partition]]
            if sorted(found) != sorted(mine):
                raise Broken(f"{place}: {partition} has {len(found)} of {len(mine)} keys")
            if store.repairing is not None or store.last_sequence < self._at.sequence:
                raise Broken(f"{place}: {partition} is not whole")
            check_kept_up(store.engine)
            while await store.count() is None:
                await store.maintain()
                check_kept_up(store.engine)
            if await store.count() != len(mine):
                raise Broken(f"{place}: {partition} counts {await store.count()} keys")
        await node.close()
