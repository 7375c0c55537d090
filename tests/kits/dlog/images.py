"""Crash images of a bookie: record adds, fences and deletions, then open it from every moment.

What must hold for each image: the bookie opens, and what it holds is what it held after some step
that is not older than the last acked one. So every acked entry and fence is there, and no entry
that was never added.
"""

import asyncio
import random
from collections.abc import Callable

from raftwood.base.errors import DiskFull, Overloaded, RaftwoodError
from raftwood.base.files import Files
from raftwood.disk.segment_log import LogSettings
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.errors import BookieReadOnly, Fenced
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.testing import CrashImage, ImageRunner, RecordingFiles, crash_images
from tests.kits.disk.images import Broken, RecorderFactory, environment_over, spread
from tests.kits.dlog.bookie_calls import packed

SETTINGS = LogSettings(
    segment_bytes=16 << 10,
    cache_bytes_max=0,
    flush_bytes_max=4 << 10,
    pending_bytes_max=64 << 10,
    full_retry_ms=5,
)
STEPS = 150
LIVES = 3
LEDGERS = 3
FOLDER = "/data/bookie"
Ledger = tuple[bytes, bool, int, dict[int, bytes]]
"""Its key, whether it is fenced, what was published, its entries."""
Contents = dict[int, Ledger]


async def open_bookie(files: Files, seed: int) -> Bookie:
    return await Bookie.open(
        environment_over(files, seed),
        FOLDER,
        cluster="images",
        id_=BookieId("bookie"),
        settings=SETTINGS,
    )


async def contents(bookie: Bookie) -> Contents:
    found: Contents = {}
    for ledger in bookie.ledgers():
        held = bookie._known(ledger)
        entries = {n: bytes(await bookie.read(ledger, n)) for n in held.index._entries}
        found[ledger] = (held.note.master_key, held.note.is_fenced, held.note.published, entries)
    return found


def _copy(state: Contents) -> Contents:
    return {ledger: (*kept[:3], dict(kept[3])) for ledger, kept in state.items()}


class BookieImages:
    """A recorded life of a bookie: filled, emptied, closed and opened again."""

    def __init__(self, seed: int, recorder: RecorderFactory = RecordingFiles) -> None:
        self._seed = seed
        self._runner = ImageRunner()
        self._recording = recorder()
        self._states: list[Contents] = [{}]

    def check(self, *, limit: int) -> int:
        """Open up to `limit` images, spread evenly; returns how many there were."""
        with self._runner:
            self._runner.run(self._record())
            images = crash_images(
                self._recording.journal, seed=self._seed, per_point=2, inside_writes=2
            )
            chosen = spread(list(images), self._seed, limit)
            for image in chosen:
                self._runner.run(self._check_image(image))
        return len(chosen)

    async def _record(self) -> None:
        rng = random.Random(self._seed)
        for _ in range(LIVES):
            bookie = await open_bookie(self._recording, rng.getrandbits(30))
            for _ in range(STEPS // LIVES):
                await self._step(rng, bookie)
                if rng.random() < 0.2:
                    await asyncio.sleep(rng.choice((0.0, 0.0, 0.05)))
            self._recording.file_system.capacity_bytes = None
            await bookie._log.sync()
            await bookie.close()

    async def _step(self, rng: random.Random, bookie: Bookie) -> None:
        """One change, and what it leads to where it is taken; a full disk refuses some."""
        disk = self._recording.file_system
        future = _copy(self._states[-1])
        ledger, draw = rng.randrange(LEDGERS), rng.random()
        key = b"key-%d" % ledger
        kept = future.get(ledger, (key, False, -1, {}))
        try:
            if draw < 0.75:
                entry = max(kept[3], default=0) + rng.randrange(-3, 4)
                self._add(rng, bookie, future, ledger, max(entry, 0))
            elif draw < 0.83:
                bookie._note(ledger, key, is_fenced=True)
                future[ledger] = (key, True, *kept[2:])
            elif draw < 0.92:
                bookie._note(ledger, key, published=kept[2] + 1)
                future[ledger] = (*kept[:2], kept[2] + 1, kept[3])
            elif draw < 0.95:
                bookie.drop([ledger])
                future.pop(ledger, None)
            else:
                disk.capacity_bytes = disk.used_bytes() if disk.capacity_bytes is None else None
        except (DiskFull, Overloaded, BookieReadOnly, Fenced):
            return
        self._states.append(future)
        bookie.when_durable(self._acked(len(self._states) - 1))

    def _add(
        self, rng: random.Random, bookie: Bookie, future: Contents, ledger: int, entry: int
    ) -> None:
        key = b"key-%d" % ledger
        data = packed(ledger, entry, rng.randbytes(rng.randrange(0, 1500)))
        kept = future.get(ledger, (key, False, -1, {}))
        error = bookie.add(data, master_key=key, is_recovery=rng.random() < 0.3)
        if error is not None:
            raise error
        kept[3].setdefault(entry, data)
        future[ledger] = kept

    def _acked(self, number: int) -> Callable[[], None]:
        return lambda: self._recording.mark(number)

    async def _check_image(self, image: CrashImage) -> None:
        acked = max(image.marks, default=0)
        place = f"seed {self._seed}, point {image.point}, {image.kind}, {acked} steps acked"
        bookie = await open_bookie(image.files, 1)
        try:
            found = await contents(bookie)
        except RaftwoodError as error:
            raise Broken(f"{place}: {error.message}") from error
        if not any(found == state for state in self._states[acked:]):
            raise Broken(f"{place}: what came back was never there, or lacks what was acked")
        await bookie.close()
