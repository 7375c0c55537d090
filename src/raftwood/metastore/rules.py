"""`MetastoreState`: the metastore as a state machine, without I/O or clock.

A key keeps only its latest step, a value or a removal, in the order of versions. A watch needs no
more, because it may report only the latest change of a key. The number of removals is bounded; a
watch from before the oldest one has to begin anew.

`LeaseDeadlines` finds the leases that are over without looking at all of them. A renewal only notes
the new deadline; the heap keeps the old one until it reaches the top and is corrected there. So a
renewal is cheap, and finding due leases costs by their number.

A snapshot is encoded a slice at a time, so that no request waits for the whole.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    OutOfRange,
    Overloaded,
    RaftwoodError,
    StoreDamaged,
)
from raftwood.base.seams import KeyChange, KeyEntry, KeyRange, MetaStatus, SetKey, Versioned
from raftwood.base.versions import decode_versioned
from raftwood.metastore.commands import (
    Command,
    ExpireLeases,
    GrantLease,
    KeepAlive,
    MetastoreDone,
    Result,
    RevokeLease,
    Transact,
    Transacted,
    check_command,
    decode_command,
    encode,
    failed,
)

_SPARE: Final = 64
"""The heap may hold this many entries of ended leases, plus one for each lease that is left."""


class LeaseDeadlines:
    """Deadlines of leases, in milliseconds; a deadline never goes back."""

    def __init__(self) -> None:
        self._deadlines: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """One entry for each lease, at its deadline or an earlier one."""

    def set(self, lease: int, *, deadline_ms: int) -> None:
        before = self._deadlines.get(lease)
        if before is None:
            heapq.heappush(self._heap, (deadline_ms, lease))
        self._deadlines[lease] = deadline_ms if before is None else max(before, deadline_ms)

    def remove(self, lease: int) -> None:
        """Forgets a lease for good; its number is not used again."""
        self._deadlines.pop(lease, None)
        if len(self._heap) > 2 * len(self._deadlines) + _SPARE:
            self._heap = [(deadline, each) for each, deadline in self._deadlines.items()]
            heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline."""
        while self._heap:
            deadline, lease = self._heap[0]
            current = self._deadlines.get(lease)
            if current == deadline:
                return deadline
            if current is None:
                heapq.heappop(self._heap)
            else:
                heapq.heapreplace(self._heap, (current, lease))
        return None

    def due(self, now_ms: int) -> list[int]:
        """Returns the numbers of the leases that are over; they stay until `remove`."""
        found: list[tuple[int, int]] = []
        while (deadline := self.next_ms) is not None and deadline <= now_ms:
            found.append(heapq.heappop(self._heap))
        for each in found:
            heapq.heappush(self._heap, each)
        return sorted(lease for _, lease in found)


FORMAT_VERSION: Final = 1
_ARRAY_OF_7: Final = b"\x97"
_ARRAY_32: Final = 0xDD

_encoder = msgspec.msgpack.Encoder()


class KeyStep(msgspec.Struct, frozen=True, array_like=True):
    """A key's latest step; without a value, its removal."""

    value: bytes | None
    version: int
    lease: int = 0


class MetastoreSnapshot(msgspec.Struct, array_like=True):
    """A whole state; steps are in the order of their versions."""

    format_version: int
    now_ms: int
    version: int
    floor: int
    next_lease: int
    steps: list[tuple[str, KeyStep]]
    leases: list[tuple[int, int, int]]
    """Number, time to live and deadline."""


def encode_slices(
    empty: MetastoreSnapshot, keys: Sequence[str], steps: Sequence[KeyStep], *, slice_bytes: int
) -> Iterator[bytes]:
    """Yields a snapshot with these steps in slices of about this size, longer by a step at the
    most.

    Keys and steps are separate arguments because copying each list is quick; making pairs is not.
    """
    numbers = (empty.format_version, empty.now_ms, empty.version, empty.floor, empty.next_lease)
    parts = [_ARRAY_OF_7, *map(_encoder.encode, numbers), _array_header(len(steps))]
    size = 0
    for pair in zip(keys, steps, strict=True):
        part = _encoder.encode(pair)
        parts.append(part)
        size += len(part)
        if size >= slice_bytes:
            yield b"".join(parts)
            parts, size = [], 0
    yield b"".join([*parts, _encoder.encode(empty.leases)])


def of_size(slices: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yields the same bytes in pieces of one size; the last may be shorter."""
    rest = bytearray()
    for each in slices:
        rest += each
        while len(rest) >= size:
            yield bytes(rest[:size])
            del rest[:size]
    if rest:
        yield bytes(rest)


def _array_header(length: int) -> bytes:
    return bytes([_ARRAY_32]) + length.to_bytes(4, "big")


def decode_snapshot(data: bytes) -> MetastoreSnapshot:
    """Decodes a snapshot; raises `UnsupportedVersion` or `StoreDamaged` if it cannot."""
    snapshot = decode_versioned(
        data,
        MetastoreSnapshot,
        version=FORMAT_VERSION,
        name="the metastore's snapshot",
    )
    leases = {0, *(number for number, _, _ in snapshot.leases)}
    if not all(step.lease in leases for _, step in snapshot.steps):
        raise StoreDamaged("the metastore's snapshot names a lease that it lacks")
    return snapshot


STATE_BYTES_MAX = 64 << 20
REMOVALS_KEPT = 10_000
SLICE_BYTES = 256 << 10


class _Lease(msgspec.Struct):
    ttl_ms: int
    deadline_ms: int
    keys: dict[str, None] = {}


class MetastoreState:
    """All keys, leases and remembered removals; equal commands lead to equal states."""

    def __init__(self, *, removals_kept: int = REMOVALS_KEPT) -> None:
        self.version = 0
        self.now_ms = 0
        self.floor = 0
        self._removals_kept = removals_kept
        self._next_lease = 1
        self._steps: dict[str, KeyStep] = {}
        """In the order of versions: a change moves its key to the end."""
        self._removed: dict[str, None] = {}
        self._names: list[str] = []
        self._leases: dict[int, _Lease] = {}
        self._deadlines = LeaseDeadlines()
        self._bytes = 0

    def apply(self, command: bytes, now_ms: int) -> bytes:
        """Runs one command at a time that never goes back."""
        self.now_ms = max(self.now_ms, now_ms)
        self._expire()
        result: Result
        try:
            decoded = decode_command(command)
            check_command(decoded)
            result = self._carry_out(decoded)
        except RaftwoodError as error:
            result = failed(error)
        return encode(result)

    def _carry_out(self, command: Command) -> Result:
        match command:
            case Transact():
                return self._transact(command)
            case GrantLease(ttl_ms):
                lease = self._next_lease
                self._next_lease += 1
                self._leases[lease] = _Lease(ttl_ms, self.now_ms + ttl_ms)
                self._deadlines.set(lease, deadline_ms=self.now_ms + ttl_ms)
                return MetastoreDone(lease)
            case KeepAlive(lease):
                self._renew(lease)
            case RevokeLease(lease):
                if lease in self._leases:
                    self._end(lease)
            case ExpireLeases():
                pass
        return MetastoreDone()

    def _transact(self, command: Transact) -> Transacted:
        held = all(self._version_of(each.key) == each.version for each in command.compares)
        branch = command.then if held else command.otherwise
        wanted = [each for each in branch if isinstance(each, SetKey) or self._version_of(each.key)]
        # All checks come first: a transaction is all or nothing.
        for each in wanted:
            if isinstance(each, SetKey) and each.lease:
                self._lease(each.lease)
        growth = sum(len(each.key) + len(each.value) for each in wanted if isinstance(each, SetKey))
        if self._bytes + growth > STATE_BYTES_MAX:
            raise Overloaded(f"the metastore holds {self._bytes} bytes: remove keys first")
        if wanted:
            self.version += 1
        for each in wanted:
            if isinstance(each, SetKey):
                if each.lease:
                    self._renew(each.lease)
                self._step(each.key, KeyStep(each.value, self.version, each.lease))
            else:
                self._step(each.key, KeyStep(None, self.version))
        return Transacted(held, self.version)

    def _step(self, key: str, step: KeyStep) -> None:
        before = self._steps.pop(key, None)
        if before is not None and before.value is not None:
            self._bytes -= len(key) + len(before.value)
            if before.lease:
                self._leases[before.lease].keys.pop(key, None)
        was_present = before is not None and before.value is not None
        self._removed.pop(key, None)
        self._steps[key] = step
        if step.value is None:
            self._removed[key] = None
            if was_present:
                del self._names[bisect_left(self._names, key)]
            while len(self._removed) > self._removals_kept:
                oldest = next(iter(self._removed))
                del self._removed[oldest]
                self.floor = self._steps.pop(oldest).version
            return
        self._bytes += len(key) + len(step.value)
        if step.lease:
            self._leases[step.lease].keys[key] = None
        if not was_present:
            insort(self._names, key)

    def _lease(self, number: int) -> _Lease:
        lease = self._leases.get(number)
        if lease is None:
            raise NotFound(f"lease {number} has ended or never was: grant a new one")
        return lease

    def _renew(self, number: int) -> None:
        lease = self._lease(number)
        lease.deadline_ms = self.now_ms + lease.ttl_ms
        self._deadlines.set(number, deadline_ms=lease.deadline_ms)

    def _expire(self) -> None:
        for number in self._deadlines.due(self.now_ms):
            self._end(number)

    def _end(self, number: int) -> None:
        keys = list(self._leases[number].keys)
        if keys:
            self.version += 1
        for key in keys:
            self._step(key, KeyStep(None, self.version))
        del self._leases[number]
        self._deadlines.remove(number)

    def _version_of(self, key: str) -> int:
        step = self._steps.get(key)
        return step.version if step is not None and step.value is not None else 0

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next lease ends unless it is renewed."""
        return self._deadlines.next_ms

    def lease_ttls(self) -> dict[int, int]:
        """All leases, each with the time that a renewal gives it."""
        return {number: each.ttl_ms for number, each in self._leases.items()}

    def lease_ttl_ms(self, number: int) -> int | None:
        """The time that a renewal gives a lease; None if there is no such lease."""
        lease = self._leases.get(number)
        return None if lease is None else lease.ttl_ms

    def get(self, key: str) -> Versioned | None:
        step = self._steps.get(key)
        if step is None or step.value is None:
            return None
        return Versioned(step.value, step.version, step.lease)

    def range(self, *, prefix: str, start: str, end: str | None, limit: int) -> KeyRange:
        if limit < 1:
            raise InvalidInput(f"a range of {limit} keys shows nothing: give 1 or more")
        entries: list[KeyEntry] = []
        for position in range(bisect_left(self._names, max(prefix, start)), len(self._names)):
            key = self._names[position]
            if not key.startswith(prefix) or (end is not None and key >= end):
                break
            if len(entries) == limit:
                return KeyRange(tuple(entries), self.version, key)
            step = self._steps[key]
            assert step.value is not None
            entries.append(KeyEntry(key, step.value, step.version, step.lease))
        return KeyRange(tuple(entries), self.version)

    def changes(self, prefix: str, *, after_version: int) -> list[tuple[KeyChange, ...]]:
        """Returns the latest step of each key changed since a version, grouped by version."""
        if not self.floor <= after_version <= self.version:
            raise OutOfRange(
                f"changes after version {after_version} are not known, only after {self.floor} to "
                f"{self.version}: read the range again and watch after its version"
            )
        groups: dict[int, list[KeyChange]] = {}
        for key, step in reversed(self._steps.items()):
            if step.version <= after_version:
                break
            if key.startswith(prefix):
                change = KeyChange(key, step.value, step.version)
                groups.setdefault(step.version, []).append(change)
        return [tuple(reversed(group)) for group in reversed(groups.values())]

    def status(self) -> MetaStatus:
        return MetaStatus(self.version, len(self._names), len(self._leases), self.floor)

    def snapshot_slices(self, slice_bytes: int = SLICE_BYTES) -> Iterator[bytes]:
        """Yields the state as of the call, encoded while the caller iterates.

        The state may change meanwhile. The call itself only copies the lists of keys and steps.
        """
        leases = [(number, each.ttl_ms, each.deadline_ms) for number, each in self._leases.items()]
        taken = MetastoreSnapshot(
            FORMAT_VERSION, self.now_ms, self.version, self.floor, self._next_lease, [], leases
        )
        keys, steps = list(self._steps), list(self._steps.values())
        return encode_slices(taken, keys, steps, slice_bytes=slice_bytes)

    def snapshot(self) -> bytes:
        return b"".join(self.snapshot_slices())

    @classmethod
    def restored(cls, data: bytes, *, removals_kept: int = REMOVALS_KEPT) -> "MetastoreState":
        """Restores the state of a snapshot; errors as of `decode_snapshot`."""
        snapshot = decode_snapshot(data)
        state = cls(removals_kept=removals_kept)
        state.now_ms, state.version = snapshot.now_ms, snapshot.version
        state.floor, state._next_lease = snapshot.floor, snapshot.next_lease
        for number, ttl_ms, deadline_ms in snapshot.leases:
            state._leases[number] = _Lease(ttl_ms, deadline_ms)
            state._deadlines.set(number, deadline_ms=deadline_ms)
        for key, step in snapshot.steps:
            state._step(key, step)
        return state
