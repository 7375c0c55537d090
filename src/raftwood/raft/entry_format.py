"""Runs: consecutive entries of one term as one buffer, the same on the wire and in the log.

A run's payload is a table of 32-bit words, one per entry, and the entries' payloads behind it. A
word holds the kind in its two highest bits and the length in the others, little-endian. Group,
term, first index and count stand in the header of whatever carries the run.
"""

import struct
from typing import Final

import msgspec

from raftwood.base.errors import ProtocolError
from raftwood.base.files import Buffer
from raftwood.raft.core import Entry, EntryKind

WORD_BYTES: Final = 4
_KIND_SHIFT: Final = 30
_LENGTH_MASK: Final = (1 << _KIND_SHIFT) - 1
_KINDS: Final = tuple(EntryKind)
_NORMAL: Final = EntryKind.NORMAL
_KNOWN_MAX: Final = 64
_SMALL_BYTES: Final = 4096


class LogEntry(msgspec.Struct, frozen=True):
    """One committed entry, as a query of the log gives it."""

    index: int
    term: int
    kind: EntryKind
    payload: Buffer
    """Maybe a view of the whole run."""


class EncodedRun(msgspec.Struct, frozen=True, gc=False):
    """A run and the header's part of it."""

    term: int
    first_index: int
    count: int
    payload: Buffer


def encode_run(entries: list[Entry]) -> EncodedRun:
    """One run of entries, which must be consecutive and of one term."""
    words = [len(entry.payload) | entry.kind << _KIND_SHIFT for entry in entries]
    table = struct.pack(f"<{len(words)}I", *words)
    payload = b"".join([table, *[entry.payload for entry in entries]])
    return EncodedRun(entries[0].term, entries[0].index, len(entries), payload)


def _words(run: EncodedRun) -> tuple[int, ...]:
    count, payload = run.count, run.payload
    if count <= 0 or WORD_BYTES * count > len(payload):
        raise ProtocolError(f"a run of {count} entries does not fit {len(payload)} bytes")
    return struct.unpack_from(f"<{count}I", payload)


def _sliceable(run: EncodedRun) -> bytes | memoryview:
    """Slicing bytes is far cheaper than slicing a view, unless the copy of it all is dear."""
    payload = run.payload
    is_small = len(payload) <= _SMALL_BYTES * run.count
    return bytes(payload) if is_small else memoryview(payload)


def _check_end(end: int, size: int) -> None:
    if end != size:
        raise ProtocolError(f"a run's lengths add up to {end}, not to {size} bytes")


def decode_run(run: EncodedRun) -> list[Entry]:
    """The entries of a run; `ProtocolError` where the table does not fit the payload."""
    words = _words(run)
    entries = []
    data = _sliceable(run)
    term, index, start = run.term, run.first_index, WORD_BYTES * run.count
    for word in words:
        kind, end = _NORMAL, start + word
        if word > _LENGTH_MASK:
            kind, end = _KINDS[word >> _KIND_SHIFT], start + (word & _LENGTH_MASK)
        entries.append(Entry(term, index, kind, bytes(data[start:end])))
        index += 1
        start = end
    _check_end(start, len(data))
    return entries


def view_run(run: EncodedRun) -> list[LogEntry]:
    """Like `decode_run`, for readers: large payloads are not copied."""
    words = _words(run)
    data = _sliceable(run)
    entries, index, start = [], run.first_index, WORD_BYTES * run.count
    for word in words:
        end = start + (word & _LENGTH_MASK)
        entries.append(LogEntry(index, run.term, _KINDS[word >> _KIND_SHIFT], data[start:end]))
        index += 1
        start = end
    _check_end(start, len(data))
    return entries


class RunCache:
    """Remembers the runs of the current turn, so that none is encoded twice.

    A leader writes to its log what it sends to its peers; a follower writes what it received.
    """

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[int, tuple[EncodedRun, Entry, Entry]] = {}
        """Runs by first index, with their first and last entries; cleared after each turn."""

    def remember(self, run: EncodedRun, entries: list[Entry]) -> None:
        if len(self.known) >= _KNOWN_MAX:
            self.known.clear()
        self.known[run.first_index] = (run, entries[0], entries[-1])

    def runs(self, entries: list[Entry]) -> list[tuple[EncodedRun, list[Entry]]]:
        """Entries as runs with their parts of the list: known ones as they are, others made."""
        position, end = 0, len(entries)
        if self._known_until(entries, 0) == end:
            return [(self.known[entries[0].index][0], entries)]
        found = []
        while position < end:
            stop = self._known_until(entries, position)
            if stop:
                run = self.known[entries[position].index][0]
                part = entries[position:stop]
            else:
                stop = self._unknown_until(entries, position)
                part = entries[position:stop] if position or stop < end else entries
                run = encode_run(part)
                self.remember(run, part)
            found.append((run, part))
            position = stop
        return found

    def _known_until(self, entries: list[Entry], position: int) -> int:
        """The end of a remembered run that begins here; zero if there is none."""
        known = self.known.get(entries[position].index)
        if known is None:
            return 0
        run, first, last = known
        stop = position + run.count
        fits = stop <= len(entries) and entries[position] is first and entries[stop - 1] is last
        return stop if fits else 0

    def _unknown_until(self, entries: list[Entry], position: int) -> int:
        term = entries[position].term
        known = self.known
        for stop in range(position + 1, len(entries)):
            entry = entries[stop]
            if entry.term != term or (entry.index in known and self._known_until(entries, stop)):
                return stop
        return len(entries)
