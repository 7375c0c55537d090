"""A tailer in simulation: a writer that rotates its files, a log that stores once, and crashes."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import Unavailable
from raftwood.clogs.frames import LineBatch
from raftwood.clogs.masking import MaskRule, masking_of
from raftwood.clogs.tail.seams import BatchDeliverer
from raftwood.clogs.tail.settings import TailSettings
from raftwood.clogs.tail.tailer import Tailer
from raftwood.testing import Simulation, simulate
from raftwood.testing.disk import SLOW_DISK, DiskProfile
from tests.kits.clogs.tail.batch_lines import lines_of
from tests.kits.clogs.tail.fake_files import FakeDisk, FakeFiles, FakeInode, FakeWatch

FOLDER = "/logs"
STATE = "/data/ship"
QUICK = TailSettings(
    paths=(f"{FOLDER}/*.log",),
    name="{base}",
    batch_bytes_max=4096,
    line_bytes_max=1024,
    poll_ms=20,
    scan_ms=50,
    rescan_ms=1_500,
    grace_ms=300,
    grace_ms_max=3000,
    partial_ms=400,
    retry_ms=20,
    close_ms=1000,
)


OTHER_RULES = (MaskRule("letters", "x", "y"),)
"""Each line is another one by these, and can be known again."""
_Asked = tuple[LineBatch, "asyncio.Future[None]"]


class OnceLog:
    """Stores a batch once, by its producer and sequence; at times nobody hears of it."""

    def __init__(
        self, source: random.Random, *, failing: float = 0.0, slow_s: float = 0.02
    ) -> None:
        self._random = source
        self._failing = failing
        self._slow_s = slow_s
        self._asked: asyncio.Queue[deque[_Asked]] = asyncio.Queue()
        self._waiting: dict[str, deque[_Asked]] = {}
        self._known: dict[tuple[bytes, int], list[bytes]] = {}
        self.stored: dict[str, list[bytes]] = {}
        self.batches: list[LineBatch] = []
        self.broken: list[str] = []
        self.duplicates = 0

    async def deliver(self, batch: LineBatch) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(batch.name, deque())
        waiting.append((batch, answer))
        if len(waiting) == 1:
            self._asked.put_nowait(waiting)
        await answer

    async def serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._handle(await self._asked.get()))

    async def _handle(self, waiting: deque[_Asked]) -> None:
        """The batches of one name, in order; none behind one that fails."""
        while waiting:
            batch, answer = waiting[0]
            await asyncio.sleep(self._random.random() * self._slow_s)
            fails = self._random.random() < self._failing
            if not fails or self._random.random() < 0.5:
                self.store(batch)
            await asyncio.sleep(self._random.random() * self._slow_s)
            answered = list(waiting) if fails else [waiting[0]]
            for each in answered:
                waiting.remove(each)
            for _, answer in answered:
                if answer.done():
                    continue
                if fails:
                    answer.set_exception(Unavailable("the log is away: try again"))
                else:
                    answer.set_result(None)

    def store(self, batch: LineBatch) -> None:
        lines = lines_of(batch)
        key = (batch.producer, batch.sequence)
        known = self._known.setdefault(key, lines)
        if known is not lines:
            self.duplicates += 1
            if known != lines:
                self.broken.append(f"{batch.name}: sequence {batch.sequence} came with other lines")
            return
        if batch.count != len(lines):
            self.broken.append(f"{batch.name}: {batch.count} lines were told, {len(lines)} came")
        self.batches.append(batch)
        plain = [line.replace(b"y", b"x") for line in lines]
        self.stored.setdefault(batch.name, []).extend(plain)

    def lines(self) -> int:
        return sum(map(len, self.stored.values()))


class Written(msgspec.Struct):
    """What a file's writer wrote to it, wherever the file is by now."""

    inode: FakeInode
    lines: list[bytes]


class Writer:
    """Writes numbered lines to some names, and rotates them."""

    def __init__(
        self, source: random.Random, disk: FakeDisk, log: OnceLog, names: list[str]
    ) -> None:
        self._random = source
        self._disk = disk
        self._log = log
        self.names = names
        self.lines: dict[str, list[bytes]] = {name: [] for name in names}
        self._files: dict[str, list[Written]] = {name: [] for name in names}
        self._rotations = 0
        self.is_watched = False
        """So well that no file is missed that is only renamed."""

    async def step(self) -> None:
        name = self._random.choice(self.names)
        draw = self._random.random()
        if draw < 0.55:
            await self._write(name)
        elif draw < 0.75:
            await self._rotate(name)
        elif draw < 0.88:
            self._remove(name)
        elif draw < 0.94:
            self._truncate(name)
        await asyncio.sleep(self._random.random() * 0.06)

    def _line(self, name: str) -> bytes:
        line = f"{name} {len(self.lines[name])} {'x' * self._random.randrange(120)}".encode()
        self.lines[name].append(line)
        return line

    async def _write(self, name: str, inode: FakeInode | None = None) -> None:
        """Some lines, in pieces that need not end with a line."""
        if inode is None:
            inode = self._disk.append(f"{FOLDER}/{name}", b"")
            if not self._files[name] or self._files[name][-1].inode is not inode:
                self._files[name].append(Written(inode, []))
        lines = [self._line(name) for _ in range(self._random.randrange(1, 60))]
        self._files[name][-1].lines += lines
        data = b"".join(line + b"\n" for line in lines)
        cut = self._random.randrange(len(data))
        self._disk.write_on(inode, data[:cut])
        if self._random.random() < 0.4:
            await asyncio.sleep(self._random.random() * 0.05)
        self._disk.write_on(inode, data[cut:])

    async def _rotate(self, name: str) -> None:
        """By rename; the writer appends to the old file a little longer."""
        path = f"{FOLDER}/{name}"
        inode = self._disk.names.get(path)
        if inode is None or not (self.is_watched or self._is_known(name)):
            return
        self._rotations += 1
        self._disk.rename(path, f"{path}.{self._rotations}")
        if self._random.random() < 0.5:
            await asyncio.sleep(self._random.random() * 0.1)
            await self._write(name, inode)

    def _is_known(self, name: str) -> bool:
        """A tailer can find a renamed file only if it has seen it before."""
        stored = set(self._log.stored.get(name, ()))
        return not stored.isdisjoint(self._files[name][-1].lines)

    def _truncate(self, name: str) -> None:
        """As by copytruncate, at a moment at which nothing is lost by it."""
        inode = self._disk.names.get(f"{FOLDER}/{name}")
        stored = set(self._log.stored.get(name, ()))
        written = self._files[name][-1] if self._files[name] else None
        if written is not None and written.inode is inode and stored.issuperset(written.lines):
            self._disk.truncate(f"{FOLDER}/{name}")
            written.lines.clear()

    def _remove(self, name: str) -> None:
        """A rotated file that is stored as a whole: its inode is used again."""
        stored = set(self._log.stored.get(name, ()))
        for written in self._files[name][:-1]:
            paths = [path for path, inode in self._disk.names.items() if inode is written.inode]
            if paths and stored.issuperset(written.lines):
                self._disk.unlink(paths[0])
                self._files[name].remove(written)
                return


class TailWorld:
    """One run: write, rotate, kill, lose power, come back; then all lines must be there once."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        settings: TailSettings = QUICK,
    ) -> None:
        self.simulation = simulation
        self.random = simulation.loop.random_of("tail world")
        # Files that are read to their end are known for a while, or for long.
        forget_ms = self.random.choice((0, 5_000))
        self.settings = msgspec.structs.replace(settings, forget_ms=forget_ms)
        self.disk = FakeDisk()
        slow_s = self.random.choice((0.001, 0.02))
        self.log = OnceLog(self.random, failing=0.1, slow_s=slow_s)
        self.delivering: BatchDeliverer = self.log
        self.writer = Writer(self.random, self.disk, self.log, ["a.log", "b.log"])
        # Where syncs take longer than the log does, what is sent too early is stored too early.
        disk = self.random.choice((SLOW_DISK, DiskProfile()))
        self.machine = simulation.add_node("shipper", disk=disk)
        self.files: FakeFiles | None = None
        self.tailer: Tailer | None = None
        self.stop = asyncio.Event()
        self.changes_rules = False
        """Each life has its own rules for lines."""
        self.watch_random = simulation.loop.random_of("watch")
        self.watch: bool | None = self.watch_random.choice((None, False, True))
        """Whether it is whole; None: there is none."""

    async def program(self, environment: Environment) -> None:
        self.files = FakeFiles(self.disk, delay_s=0.0005)
        watch = None
        if self.watch is not None:
            watch = FakeWatch(self.disk, self.watch_random, is_whole=self.watch)
        settings = self.settings
        if self.changes_rules:
            rules = self.random.choice(((), OTHER_RULES))
            settings = msgspec.structs.replace(settings, mask_rules=rules)
        self.tailer = await Tailer.start(
            environment,
            settings,
            folder=STATE,
            files=self.files,
            delivering=self.delivering,
            masking=masking_of((), settings.mask_rules),
            watching=watch,
        )
        await self.stop.wait()
        await self.tailer.close()

    def crash(self) -> None:
        if self.random.random() < 0.5:
            self.machine.kill()
        else:
            self.machine.power_off()
        if self.files is not None:
            self.files.killed()

    def check(self) -> None:
        assert self.log.broken == []
        for name in self.writer.names:
            assert self.log.stored.get(name, []) == self.writer.lines[name], name

    def is_complete(self) -> bool:
        return self.log.lines() >= sum(map(len, self.writer.lines.values()))

    async def run(self, *, steps: int, crashes: float) -> None:
        server = asyncio.create_task(self.log.serve())
        self.machine.start(self.program)
        if self.writer.is_watched:
            await self.simulation.wait_until(lambda: self.tailer is not None)
            await asyncio.sleep(0.2)  # for the first scan
        for _ in range(steps):
            await self.writer.step()
            if self.random.random() < crashes and self.machine.running:
                self.crash()
                if self.random.random() < 0.5:
                    await self.writer.step()
                self.machine.start()
        with suppress(TimeoutError):  # the check tells what is missing
            await self.simulation.wait_until(self.is_complete, timeout_s=30.0)
        await asyncio.sleep(1.0)  # for what comes twice
        self.stop.set()
        await self.simulation.wait_until(lambda: not self.machine.running)
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server
        self.check()


def run_watched(seed: int) -> TailWorld:
    """Without crashes, and with a watch that misses nothing: files are rotated as fast as can be,
    and scans are as seldom as never.
    """

    def watch(world: TailWorld) -> None:
        world.watch = world.writer.is_watched = True
        world.settings = msgspec.structs.replace(world.settings, rescan_ms=3_600_000)

    return run_world(seed, crashes=0.0, change=watch)


def run_with_other_rules(seed: int) -> TailWorld:
    """Each life masks lines in its own way."""

    def change(world: TailWorld) -> None:
        world.changes_rules = True

    return run_world(seed, crashes=0.3, change=change)


def run_world(
    seed: int,
    *,
    steps: int = 60,
    crashes: float = 0.12,
    change: Callable[[TailWorld], None] | None = None,
) -> TailWorld:
    worlds: list[TailWorld] = []

    async def scenario(simulation: Simulation) -> None:
        world = TailWorld(simulation)
        worlds.append(world)
        if change is not None:
            change(world)
        await world.run(steps=steps, crashes=crashes)

    simulate(seed, scenario)
    return worlds[0]
