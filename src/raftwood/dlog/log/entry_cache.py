"""Entries in memory for all readers of a process, those used last, within a bound."""

from raftwood.dlog.log.entries import DecodedEntry


class EntryCache:
    """An entry never changes, and its ledger's id is never used again: nothing gets stale."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: dict[tuple[int, int], tuple[DecodedEntry, int]] = {}
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, ledger: int, entry: int) -> DecodedEntry | None:
        found = self._entries.pop((ledger, entry), None)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries[ledger, entry] = found
        return found[0]

    def put(self, ledger: int, entry: int, decoded: DecodedEntry, size: int) -> None:
        # The body may be larger than what was fetched.
        size = max(size, len(decoded.body)) + 200
        old = self._entries.pop((ledger, entry), None)
        self.bytes += size - (old[1] if old else 0)
        self._entries[ledger, entry] = decoded, size
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._entries))
            self.bytes -= self._entries.pop(oldest)[1]
