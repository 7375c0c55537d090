"""Rules that capture one partition, also where a failover cut its binlog. No I/O.

    read behind the point ──unknown──▶ where do we part ──▶ values of the keys that were cut ──┐
       ▲          │                            │ not known                                      │
       │          └───────purged───────▶ snapshot ──────────────────────────────────────────────┤
       └────────────────────────────────────────────────────────────────────────────────────────┘

Records become chunks. The caller stores chunks in order, each with the point that holds from then
on, so a later process resumes at the point of the last stored chunk. If a failover took back
captured records, the stream gets the present values of the keys that they touched (a slave with
such records does the same): so the stream ends with what the table has. If the next records are
purged, a snapshot of all keys follows.

The caller does what `step` says and reports the result (`read`, `parted`, `valued`, …). It stores
the returned chunks in order before it takes any step but a read.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from raftwood.base.errors import InvariantViolated
from raftwood.capture.events import (
    Cause,
    Point,
    changes_of,
    count_of,
    encode_flush,
    encode_mark,
    encode_write,
)
from raftwood.zeppelin.client.binlogs import BinlogWant, KeysNow, PartitionSlots
from raftwood.zeppelin.records import (
    BinlogPosition,
    BinlogRecord,
    EpochStart,
    KeyWrite,
    decode_record,
)
from raftwood.zeppelin.replication.epochs import epoch_at, epochs_up_to


def root_of(partitions: Sequence[PartitionSlots], number: int) -> int:
    """Returns the original partition that this one is a part of."""
    while (parent := partitions[number].parent) is not None:
        number = parent
    return number


def slots_at(partitions: Sequence[PartitionSlots], number: int, sequence: int) -> range:
    """Returns a partition's slots when it wrote a record, with those of its later parts."""
    own = partitions[number]
    stop = own.stop
    for each in partitions:
        if each.parent == number and each.split_at.sequence >= sequence:
            stop = max(stop, slots_at(partitions, each.number, each.split_at.sequence + 1).stop)
    return range(own.first, stop)


_KEY_BYTES = 100
"""Estimated memory of a key besides its bytes."""


class RecentKeys:
    """The keys that a partition's latest records touched, within a bound on memory."""

    def __init__(self, *, bytes_max: int, floor: int = 0) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._keys: deque[tuple[int, bytes | None]] = deque()
        """The keys, with their records' sequences; None: a flush."""
        self.floor = floor
        """All keys of captured records behind this sequence are known."""

    def add(self, sequence: int, key: bytes | None) -> None:
        self._keys.append((sequence, key))
        self._bytes += _size(key)
        while self._bytes > self._bytes_max:
            self.floor, forgotten = self._keys.popleft()
            self._bytes -= _size(forgotten)

    def behind(self, sequence: int) -> list[bytes] | None:
        """Returns the keys that records behind a sequence touched; None if that is not known."""
        if sequence < self.floor:
            return None
        found: dict[bytes, None] = {}
        for place, key in reversed(self._keys):
            if place <= sequence:
                break
            if key is None:
                return None
            found[key] = None
        return list(found)

    def cut(self, sequence: int) -> None:
        """Forgets the records behind a sequence: they were cut."""
        while self._keys and self._keys[-1][0] > sequence:
            self._bytes -= _size(self._keys.pop()[1])

    def begin(self, sequence: int) -> None:
        """Forgets all keys; knowledge begins behind this sequence."""
        self._keys.clear()
        self._bytes = 0
        self.floor = sequence


def _size(key: bytes | None) -> int:
    return _KEY_BYTES + len(key or b"")


CHUNK_BYTES: Final = 512 << 10
"""Bytes of a chunk; one change may exceed it."""
EPOCHS_KEPT: Final = 64
_NONE: Final = range(0)


class Chunk(msgspec.Struct, frozen=True):
    """Changes that are stored together."""

    body: bytes
    count: int
    point: Point
    """The point that holds once they are stored."""


class CaptureStep(Enum):
    """What the caller does next."""

    WAIT = 0
    """Wait for the partition that this one was split from."""
    READ = 1
    """Read the records that `want` names."""
    PART = 2
    """Ask the master where its binlog and `point` part; report by `parted`."""
    VALUES = 3
    """Ask a master that has the record `cut_at` for the values of `cut_keys`; report by `valued`,
    or by `again` if the master lacks the record."""
    SNAPSHOT = 4
    """Take a snapshot: `snapshot_begun`, `snapshot_page`, `snapshot_ended`."""


class _Body:
    """Collects changes into chunks."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self._parts: list[bytes] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= CHUNK_BYTES

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def add(self, encoded: bytes) -> None:
        self._parts.append(encoded)
        self._bytes += len(encoded)

    def seal(self, point: Point) -> None:
        if self._parts:
            self.chunks.append(Chunk(b"".join(self._parts), len(self._parts), point))
            self._parts, self._bytes = [], 0


class PartitionRules:
    """Captures one partition of one table."""

    def __init__(
        self, partition: int, family: Sequence[PartitionSlots], *, recent: RecentKeys
    ) -> None:
        self.partition = partition
        self.family = family
        """All partitions of the table; has each split-off partition before its records are read."""
        self.point: Point | None = None
        """Point of all changes made into chunks; None: none yet."""
        self.step = CaptureStep.WAIT
        self.cut_keys: Sequence[bytes] = ()
        self.reached = 0
        """The master's last answer: all records up to this one are done."""
        self.since = 0
        """All records from here to the point were captured one by one."""
        self._recent = recent
        self._cut_at = 0
        self._told = 0
        """Values emitted by the running snapshot or repair."""

    def begin(self, point: Point | None) -> None:
        """Resumes behind a point; None: there is none yet."""
        self.point = point
        self.since = 0 if point is None else point.sequence
        self.step = CaptureStep.READ
        if point is not None and point.is_snapshot:
            self.step = CaptureStep.SNAPSHOT

    def follow(self, parent: "PartitionRules", captured: Point, *, time_ns: int) -> list[Chunk]:
        """Notes that the parent is captured up to a point. Returns the first chunks once the point
        reaches the split.
        """
        split_at = self.family[self.partition].split_at
        if self.step is not CaptureStep.WAIT or captured.is_snapshot:
            return []
        if parent.since > split_at.sequence:
            # A snapshot captured the parent after the split, so without this partition's keys.
            self.step = CaptureStep.SNAPSHOT
            return []
        if captured.sequence - bool(captured.index) < split_at.sequence:
            return []
        epoch, sequence = split_at.epoch, split_at.sequence
        self.begin(Point(epoch=epoch, sequence=sequence, epochs=(EpochStart(epoch, sequence),)))
        self._recent.begin(sequence)
        assert self.point is not None
        body = _Body()
        at = {"epoch": str(epoch), "sequence": str(sequence)}
        body.add(encode_mark("split", at, time_ns))
        body.seal(self.point)
        return body.chunks

    @property
    def behind(self) -> int:
        """Number of records that are done and not yet read."""
        return max(0, self.reached - (0 if self.point is None else self.point.sequence))

    # Reading.

    @property
    def want(self) -> BinlogWant:
        point = self.point or Point()
        first = point.sequence if point.index else point.sequence + 1
        return BinlogWant(self.partition, point.repairing or point.position, first)

    def read(self, encoded: Sequence[bytes], *, reached: int, time_ns: int) -> list[Chunk]:
        """Takes the records from the wanted one on."""
        self.reached = max(self.reached, reached)
        body = _Body()
        if self.point is None:
            # A reader of the stream may have keys of an earlier table of this name.
            self.point = Point()
            slots = slots_at(self.family, self.partition, 1)
            body.add(encode_flush(slots, _because("begin"), time_ns))
        for each in encoded:
            self._take(decode_record(each), body, time_ns)
        body.seal(self.point)
        return body.chunks

    def _take(self, record: BinlogRecord, body: _Body, time_ns: int) -> None:
        point = self.point
        assert point is not None
        skipped = point.index
        expected = point.sequence if skipped else point.sequence + 1
        if record.sequence != expected or record.epoch < point.epoch:
            raise InvariantViolated(
                f"partition {self.partition} is captured up to {point.position}: record "
                f"{record.sequence} of epoch {record.epoch} does not follow"
            )
        following = _behind(point, record)
        slots = slots_at(self.family, self.partition, record.sequence) if record.flushes else _NONE
        index = skipped
        for change, key in changes_of(record, slots, time_ns=time_ns, skipped=skipped):
            if body.is_full:
                partial = msgspec.structs.replace(following, index=index)
                body.seal(partial if index else point)
            body.add(change)
            self._recent.add(record.sequence, key)
            index += 1
        if index != count_of(record):
            raise InvariantViolated(f"{index} changes were made of record {record.sequence}")
        self.point = following

    def unknown(self) -> None:
        """Notes that the binlog does not contain the position."""
        assert self.point is not None
        # The stream has values from a past that is gone, and their keys are not known.
        self.step = CaptureStep.SNAPSHOT if self.point.repairing is not None else CaptureStep.PART

    def purged(self) -> None:
        """Notes that the wanted record was purged."""
        self.step = CaptureStep.SNAPSHOT

    # After a cut.

    @property
    def known_epochs(self) -> tuple[tuple[EpochStart, ...], int]:
        """The epochs of the captured records, and the last sequence."""
        assert self.point is not None
        return self.point.epochs, self.point.sequence

    def parted(self, common: int | None) -> None:
        """Notes up to which sequence the binlog is the same; None: not known."""
        keys = None if common is None else self._recent.behind(common)
        if common is None or keys is None:
            self.step = CaptureStep.SNAPSHOT
        else:
            self.step, self._cut_at, self.cut_keys = CaptureStep.VALUES, common, keys

    @property
    def cut_at(self) -> BinlogPosition:
        """The last captured record that still exists."""
        assert self.point is not None
        return BinlogPosition(epoch_at(self.point.epochs, self._cut_at), self._cut_at)

    def valued(self, now: KeysNow | None, *, time_ns: int) -> list[Chunk]:
        """Takes the present values of the cut keys; None if there are no such keys."""
        point, cut = self.point, self._cut_at
        assert point is not None
        repairing = None if now is None or now.position.sequence <= cut else now.position
        after = Point(
            epoch=self.cut_at.epoch,
            sequence=cut,
            epochs=epochs_up_to(point.epochs, cut),
            repairing=repairing,
        )
        body = _Body()
        at = {"epoch": str(after.epoch), "sequence": str(cut)}
        self._told = 0
        self._put_writes(() if now is None else now.writes, "repair", at, body, time_ns, point)
        # The mark comes last: it says that all keys are repaired.
        body.add(encode_mark("cut", at, time_ns))
        body.seal(after)
        self._recent.cut(cut)
        self.since = min(self.since, cut)
        self.point, self.step, self.cut_keys = after, CaptureStep.READ, ()
        return body.chunks

    def again(self) -> None:
        """Restarts the repair of a cut that failed half-way: ask again where the binlogs part."""
        if self.step is CaptureStep.VALUES:
            self.step = CaptureStep.PART

    def still(self, *, time_ns: int) -> list[Chunk]:
        """Repeats the point, so that it stands near the end of the stream."""
        body = _Body()
        if self.point is not None and self.step is CaptureStep.READ:
            at = {"epoch": str(self.point.epoch), "sequence": str(self.point.sequence)}
            body.add(encode_mark("still", at, time_ns))
            body.seal(self.point)
        return body.chunks

    # Snapshots.

    def snapshot_begun(self, slots: range, *, time_ns: int) -> list[Chunk]:
        """Notes that all keys of these slots follow."""
        point = self.point = msgspec.structs.replace(self.point or Point(), is_snapshot=True)
        self._told = 0
        body = _Body()
        body.add(encode_flush(slots, _because("snapshot"), time_ns))
        body.seal(point)
        return body.chunks

    def snapshot_page(
        self, writes: Iterable[KeyWrite], position: BinlogPosition, *, time_ns: int
    ) -> list[Chunk]:
        assert self.point is not None
        body = _Body()
        at = {"epoch": str(position.epoch), "sequence": str(position.sequence)}
        self._put_writes(writes, "snapshot", at, body, time_ns, self.point)
        body.seal(self.point)
        return body.chunks

    def snapshot_ended(self, position: BinlogPosition, *, time_ns: int) -> list[Chunk]:
        """Notes that the snapshot is complete; reading resumes behind the position."""
        epoch, sequence = position.epoch, position.sequence
        epochs = (EpochStart(epoch, sequence),) if sequence else ()
        self.point = Point(epoch=epoch, sequence=sequence, epochs=epochs)
        self.step, self.since = CaptureStep.READ, sequence
        self._recent.begin(sequence)
        body = _Body()
        at = {"epoch": str(epoch), "sequence": str(sequence)}
        body.add(encode_mark("snapshot", at, time_ns))
        body.seal(self.point)
        return body.chunks

    def _put_writes(
        self,
        writes: Iterable[KeyWrite],
        cause: Cause,
        at: dict[str, str],
        body: _Body,
        time_ns: int,
        until_all_came: Point,
    ) -> None:
        for write in writes:
            if body.is_full:
                body.seal(until_all_came)
            named = {**_because(cause), **at, "index": str(self._told)}
            body.add(encode_write(write, named, time_ns))
            self._told += 1


def _because(cause: Cause) -> dict[str, str]:
    return {"cause": cause}


def _behind(point: Point, record: BinlogRecord) -> Point:
    """Returns the point behind a record."""
    epochs = point.epochs
    if not epochs or epochs[-1].epoch != record.epoch:
        epochs = (*epochs, EpochStart(record.epoch, record.sequence))[-EPOCHS_KEPT:]
    repairing = point.repairing
    if repairing is not None and record.sequence >= repairing.sequence:
        repairing = None
    return Point(epoch=record.epoch, sequence=record.sequence, epochs=epochs, repairing=repairing)
