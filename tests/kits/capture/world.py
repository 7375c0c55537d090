"""A partition whose masters come and go, and a capture of it that is killed and started again.

Everything is a list in memory, driven by chance: what a seed does, it does again. The rules and the
form of what they store are the real ones.
"""

import random
from collections.abc import Iterable

import msgspec

from raftwood.base.position import Position
from raftwood.capture import rules as rules_module
from raftwood.capture.events import Stamp, encode_stamp
from raftwood.capture.replay import Apply, steps_of
from raftwood.capture.rules import CaptureStep, Chunk, PartitionRules, RecentKeys
from raftwood.capture.takeover import ResumePoint
from raftwood.loghub.client.pulled_batches import Contents, PulledBatch, rows_of
from raftwood.zeppelin.client.binlogs import KeysNow, PartitionSlots
from raftwood.zeppelin.records import (
    BinlogPosition,
    BinlogRecord,
    EpochStart,
    KeyWrite,
    encode_record,
)
from raftwood.zeppelin.replication.epochs import common_point, contains, epoch_at
from raftwood.zeppelin.slots import SLOTS
from tests.kits.models import replaced

KEYS = [b"k%d" % number for number in range(8)] + [b"\xff"]
TIME_NS = 1_000_000_000
RECENT_BYTES = 2_000
FAMILY = (PartitionSlots(0, 0, SLOTS),)
Values = dict[bytes, tuple[bytes, int]]


def applied(records: Iterable[BinlogRecord]) -> Values:
    values: Values = {}
    for record in records:
        if record.flushes:
            values.clear()
        for write in record.writes:
            if write.data is None:
                values.pop(write.key, None)
            else:
                values[write.key] = (write.data, write.expires_ms)
    return values


class Master:
    """The binlog of whoever is master, and what a slave of it has."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.epoch = 1
        self.binlog: list[BinlogRecord] = []
        self.first = 1
        """Of the records that are not purged."""
        self.done = 0
        self.slave = 0
        """So far a slave is, which may become master."""
        self._written = 0

    @property
    def last(self) -> int:
        return len(self.binlog)

    @property
    def epochs(self) -> list[EpochStart]:
        found: list[EpochStart] = []
        for record in self.binlog:
            if not found or found[-1].epoch != record.epoch:
                found.append(EpochStart(record.epoch, record.sequence))
        return found

    @property
    def position(self) -> BinlogPosition:
        return BinlogPosition(epoch_at(self.epochs, self.last), self.last)

    def write(self) -> None:
        chance = self._chance
        writes = []
        for _ in range(chance.choice((0, 1, 1, 2, 5))):
            self._written += 1
            data = None if chance.random() < 0.2 else b"%d" % self._written
            ends = 0 if data is None or chance.random() < 0.7 else 10**15 + self._written
            writes.append(KeyWrite(chance.choice(KEYS), data, ends))
        flushes = chance.random() < 0.03
        origin = (b"client", self._written) if chance.random() < 0.2 else None
        self.binlog.append(BinlogRecord(self.epoch, self.last + 1, tuple(writes), flushes, origin))

    def ack(self) -> None:
        self.done = self._chance.randint(self.done, self.last)
        self.slave = self._chance.randint(self.slave, self.last)

    def fail_over(self) -> None:
        """The slave becomes master, without what it has not got: some of it may have been done."""
        del self.binlog[self.slave :]
        # Each node purges its own binlog.
        self.first = self._chance.randint(1, self.slave + 1)
        self.epoch += 1
        self.binlog.append(BinlogRecord(self.epoch, self.last + 1, ()))
        self.done = self.last
        self.slave = self._chance.randint(max(0, self.last - 5), self.last)

    def purge(self) -> None:
        self.first = self._chance.randint(self.first, max(self.first, self.slave))


class Stored(msgspec.Struct, frozen=True):
    """A batch of the stream."""

    stamp: Stamp
    contents: list[Contents]


class World:
    """One partition, its capture, and the stream."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.master = Master(self.chance)
        self.stream: list[Stored] = []
        self.queue: list[Chunk] = []
        self.tenure = 0
        self.start()

    # The process.

    def start(self) -> None:
        """What a process does first: read the stream back, from somewhere before its end."""
        self.tenure += 1
        self.queue.clear()
        found = ResumePoint(RECENT_BYTES)
        with_point = [place for place, each in enumerate(self.stream) if each.stamp.point]
        last = with_point[-1] if with_point else 0
        for each in self.stream[self.chance.randint(max(0, last - 8), last) :]:
            found.take(each.stamp, each.contents, PulledBatch(0, Position(0), Position(0), b""))
        self.rules = PartitionRules(0, FAMILY, recent=found.recent)
        self.rules.begin(found.point)

    def kill(self) -> None:
        self.start()

    def store(self) -> None:
        """Some of what was read, as one batch."""
        if not self.queue:
            return
        count = self.chance.randint(1, len(self.queue))
        chunks, self.queue = self.queue[:count], self.queue[count:]
        stamp = Stamp(
            name="test",
            incarnation=1,
            partition=0,
            tenure=self.tenure,
            chunk=len(self.stream),
            point=chunks[-1].point,
        )
        body = b"".join(chunk.body for chunk in chunks)
        rows = rows_of(body + encode_stamp(stamp, table="table"))
        assert len(rows.contents) == sum(chunk.count for chunk in chunks)
        self.stream.append(Stored(stamp, rows.contents))

    def work(self) -> None:
        """One step of the process."""
        rules, master = self.rules, self.master
        if rules.step is CaptureStep.READ:
            self._read()
        elif self.queue:
            self.store()
        elif rules.step is CaptureStep.PART:
            epochs, last = rules.known_epochs
            common = common_point(epochs, last, master.epochs, master.last)
            is_there = common is not None and common + 1 >= master.first
            rules.parted(common if is_there else None)
        elif rules.step is CaptureStep.VALUES:
            cut_at = rules.cut_at
            if cut_at.sequence and not contains(master.epochs, master.last, cut_at):
                rules.again()
                return
            values = applied(master.binlog)
            writes = tuple(KeyWrite(key, *values.get(key, (None, 0))) for key in rules.cut_keys)
            now = KeysNow(master.position, writes) if writes else None
            self.queue += rules.valued(now, time_ns=TIME_NS)
            self._maybe_stop_half_way()
        else:
            self._snapshot()
            self._maybe_stop_half_way()

    def _maybe_stop_half_way(self) -> None:
        if self.chance.random() < 0.2:
            self.store()
            self.kill()

    def _read(self) -> None:
        rules, master = self.rules, self.master
        want = rules.want
        if want.position.sequence and not contains(master.epochs, master.last, want.position):
            rules.unknown()
        elif want.first < master.first:
            rules.purged()
        else:
            records = master.binlog[want.first - 1 : master.done]
            records = records[: self.chance.randint(0, 6)]
            encoded = [encode_record(each) for each in records]
            self.queue += rules.read(encoded, reached=master.done, time_ns=TIME_NS)

    def _snapshot(self) -> None:
        rules, master = self.rules, self.master
        position = master.position
        writes = [KeyWrite(key, *value) for key, value in applied(master.binlog).items()]
        master.done = max(master.done, position.sequence)
        self.queue += rules.snapshot_begun(range(SLOTS), time_ns=TIME_NS)
        for begin in range(0, len(writes), 3):
            page = writes[begin : begin + 3]
            self.queue += rules.snapshot_page(page, position, time_ns=TIME_NS)
            if self.chance.random() < 0.1:
                return  # its node was lost: another one is begun
        self.queue += rules.snapshot_ended(position, time_ns=TIME_NS)

    # Chance.

    def happen(self) -> None:
        chance = self.chance.random()
        if chance < 0.35:
            self.master.write()
        elif chance < 0.5:
            self.master.ack()
        elif chance < 0.54:
            self.master.fail_over()
        elif chance < 0.56:
            self.master.purge()
        elif chance < 0.60:
            self.kill()
        elif chance < 0.75:
            self.store()
        else:
            self.work()

    def settle(self) -> None:
        """Nothing bad happens any more; the process gets to the end."""
        master = self.master
        master.done = master.slave = master.last
        for _ in range(500):
            point = self.rules.point
            is_done = self.rules.step is CaptureStep.READ and not self.queue and point is not None
            if is_done and point is not None and point.position == master.position:
                return
            self.work()
            self.store()
        raise AssertionError(f"it does not get to the end: {self.rules.step}, {self.rules.point}")

    # Checks.

    def check(self) -> None:
        contents = [each for stored in self.stream for each in stored.contents]
        seen: set[tuple[str | bytes, ...]] = set()
        for each in contents:
            if "cause" in each or each["op"] == "mark":
                continue
            name = (each["epoch"], each["sequence"], each["index"])
            assert name not in seen, f"{name} is there twice"
            seen.add(name)
        values: Values = {}
        for step in steps_of(contents):
            if isinstance(step, Apply):
                for write in step.writes:
                    if write.data is None:
                        values.pop(write.key, None)
                    else:
                        values[write.key] = (write.data, write.expires_ms)
            else:
                assert step.slots == range(SLOTS)
                values.clear()
        assert values == applied(self.master.binlog)


def run_world(seed: int, steps: int = 150) -> World:
    """In small chunks, so that many are cut in the middle."""
    with replaced(rules_module, CHUNK_BYTES=200)():
        world = World(seed)
        for _ in range(steps):
            world.happen()
        world.settle()
        world.check()
    return world


def marks_of(world: World) -> set[str]:
    """The kinds of what a stream holds."""
    marks: set[str] = set()
    for stored in world.stream:
        marks |= {f"{each['op']!s} {each.get('cause', '')!s}" for each in stored.contents}
        marks |= {str(each.get("mark")) for each in stored.contents}
        marks |= {"partial"} if stored.stamp.point and stored.stamp.point.index else set()
    return marks


def recent_of(*sequences: int) -> RecentKeys:
    recent = RecentKeys(bytes_max=10_000)
    for sequence in sequences:
        recent.add(sequence, b"k%d" % sequence)
    return recent
