"""The keys of what was captured last, which a cut may take back. No I/O."""

from collections import deque

_KEY_BYTES = 100
"""About what a key takes besides its bytes."""


class Recent:
    """Of one partition, within a bound on memory."""

    def __init__(self, *, bytes_max: int, floor: int = 0) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._keys: deque[tuple[int, bytes | None]] = deque()
        """By their records' sequences; None: a flush."""
        self.floor = floor
        """The keys of all captured records behind this one are known."""

    def add(self, sequence: int, key: bytes | None) -> None:
        self._keys.append((sequence, key))
        self._bytes += _size(key)
        while self._bytes > self._bytes_max:
            self.floor, forgotten = self._keys.popleft()
            self._bytes -= _size(forgotten)

    def behind(self, sequence: int) -> list[bytes] | None:
        """The keys that records behind one touched; None where they are not known, or too many."""
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
        """Records behind one did not happen."""
        while self._keys and self._keys[-1][0] > sequence:
            self._bytes -= _size(self._keys.pop()[1])

    def begin(self, sequence: int) -> None:
        """Nothing before a sequence is known any more."""
        self._keys.clear()
        self._bytes = 0
        self.floor = sequence


def _size(key: bytes | None) -> int:
    return _KEY_BYTES + len(key or b"")
