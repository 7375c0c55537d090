"""Whether the storage behind a receiver can be used: by what became of batches. No clock, no I/O.

A receiver that answers pings while it can store nothing would keep its files for nothing. So where
batch after batch fails for a while, pings are refused, and shippers go to another one. Nobody sends
batches then from which to learn that all is well again: a while after the last failure it is given
another chance.
"""

from typing import Final

FAILURES_MIN: Final = 3
"""In a row, with no batch stored between them."""
FAILING_S_MIN: Final = 2.0
"""From the first of them to the last."""
SHUNNED_S: Final = 10.0
"""After the last of them."""


class StorageHealth:
    """Tell it of each batch that was stored, or could not be for a reason of the storage's own."""

    def __init__(self) -> None:
        self._failures = 0
        self._first_s = 0.0
        self._last_s = 0.0

    def stored(self) -> None:
        self._failures = 0

    def failed(self, now_s: float) -> None:
        if self._failures and now_s - self._last_s >= SHUNNED_S:
            self._failures = 0
        if not self._failures:
            self._first_s = now_s
        self._failures += 1
        self._last_s = now_s

    def is_usable(self, now_s: float) -> bool:
        return (
            self._failures < FAILURES_MIN
            or self._last_s - self._first_s < FAILING_S_MIN
            or now_s - self._last_s >= SHUNNED_S
        )
