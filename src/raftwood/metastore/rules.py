"""`MetaState`: the metastore as a state machine, without I/O or clock.

A key keeps its latest step alone, be it a value or a removal, in the order of versions. That is
all a watch needs: changes of one key may be told as the latest. Removals are kept up to a bound;
behind it a watch has to begin anew.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

import msgspec

from raftwood.base.errors import InvalidInput, NotFound, OutOfRange, Overloaded, RaftwoodError
from raftwood.base.seams import Change, Entry, KeyRange, MetaStatus, SetKey, Versioned
from raftwood.metastore.commands import (
    Command,
    Done,
    GrantLease,
    KeepAlive,
    Result,
    RevokeLease,
    Tick,
    Transact,
    Transacted,
    check_command,
    decode_command,
    encode,
    failed,
)
from raftwood.metastore.deadlines import Deadlines
from raftwood.metastore.snapshot import FORMAT_VERSION, Snapshot, Step, decode, encode_slices

STATE_BYTES_MAX = 64 << 20
REMOVALS_KEPT = 10_000
SLICE_BYTES = 256 << 10


class _Lease(msgspec.Struct):
    ttl_ms: int
    deadline_ms: int
    keys: dict[str, None] = {}


class MetaState:
    """All keys, leases and remembered removals; equal commands lead to equal states."""

    def __init__(self, *, removals_kept: int = REMOVALS_KEPT) -> None:
        self.version = 0
        self.now_ms = 0
        self.floor = 0
        self._removals_kept = removals_kept
        self._next_lease = 1
        self._steps: dict[str, Step] = {}
        """In the order of their versions: a change moves its key to the end."""
        self._removed: dict[str, None] = {}
        self._names: list[str] = []
        self._leases: dict[int, _Lease] = {}
        self._deadlines = Deadlines()
        self._bytes = 0

    def apply(self, command: bytes, now_ms: int) -> bytes:
        """Carry out one command at a time that never goes back."""
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
                return Done(lease)
            case KeepAlive(lease):
                self._renew(lease)
            case RevokeLease(lease):
                if lease in self._leases:
                    self._end(lease)
            case Tick():
                pass
        return Done()

    def _transact(self, command: Transact) -> Transacted:
        held = all(self._version_of(each.key) == each.version for each in command.compares)
        branch = command.then if held else command.otherwise
        wanted = [each for each in branch if isinstance(each, SetKey) or self._version_of(each.key)]
        # Everything that can refuse comes first: a transaction is all or nothing.
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
                self._step(each.key, Step(each.value, self.version, each.lease))
            else:
                self._step(each.key, Step(None, self.version))
        return Transacted(held, self.version)

    def _step(self, key: str, step: Step) -> None:
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
            self._step(key, Step(None, self.version))
        del self._leases[number]
        self._deadlines.remove(number)

    def _version_of(self, key: str) -> int:
        step = self._steps.get(key)
        return step.version if step is not None and step.value is not None else 0

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next lease ends if nobody renews it."""
        return self._deadlines.next_ms

    def lease_ttls(self) -> dict[int, int]:
        """All leases, with the time that each is renewed for."""
        return {number: each.ttl_ms for number, each in self._leases.items()}

    def lease_ttl_ms(self, number: int) -> int | None:
        """The time that a lease is renewed for, if there is such a lease."""
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
        entries: list[Entry] = []
        for position in range(bisect_left(self._names, max(prefix, start)), len(self._names)):
            key = self._names[position]
            if not key.startswith(prefix) or (end is not None and key >= end):
                break
            if len(entries) == limit:
                return KeyRange(tuple(entries), self.version, key)
            step = self._steps[key]
            assert step.value is not None
            entries.append(Entry(key, step.value, step.version, step.lease))
        return KeyRange(tuple(entries), self.version)

    def changes(self, prefix: str, *, after_version: int) -> list[tuple[Change, ...]]:
        """The latest step of each key that was changed since, grouped by version."""
        if not self.floor <= after_version <= self.version:
            raise OutOfRange(
                f"changes after version {after_version} are not known, only after {self.floor} to "
                f"{self.version}: read the range again and watch after its version"
            )
        groups: dict[int, list[Change]] = {}
        for key, step in reversed(self._steps.items()):
            if step.version <= after_version:
                break
            if key.startswith(prefix):
                change = Change(key, step.value, step.version)
                groups.setdefault(step.version, []).append(change)
        return [tuple(reversed(group)) for group in reversed(groups.values())]

    def status(self) -> MetaStatus:
        return MetaStatus(self.version, len(self._names), len(self._leases), self.floor)

    def snapshot_slices(self, slice_bytes: int = SLICE_BYTES) -> Iterator[bytes]:
        """The state as it is at the call, as bytes that are made while they are taken.

        The state may change meanwhile; the call itself takes time by the number of keys alone.
        """
        leases = [(number, each.ttl_ms, each.deadline_ms) for number, each in self._leases.items()]
        taken = Snapshot(
            FORMAT_VERSION, self.now_ms, self.version, self.floor, self._next_lease, [], leases
        )
        keys, steps = list(self._steps), list(self._steps.values())
        return encode_slices(taken, keys, steps, slice_bytes=slice_bytes)

    def snapshot(self) -> bytes:
        return b"".join(self.snapshot_slices())

    @classmethod
    def restored(cls, data: bytes, *, removals_kept: int = REMOVALS_KEPT) -> "MetaState":
        """The state that a snapshot was taken of; errors as of `snapshot.decode`."""
        snapshot = decode(data)
        state = cls(removals_kept=removals_kept)
        state.now_ms, state.version = snapshot.now_ms, snapshot.version
        state.floor, state._next_lease = snapshot.floor, snapshot.next_lease
        for number, ttl_ms, deadline_ms in snapshot.leases:
            state._leases[number] = _Lease(ttl_ms, deadline_ms)
            state._deadlines.set(number, deadline_ms=deadline_ms)
        for key, step in snapshot.steps:
            state._step(key, step)
        return state
