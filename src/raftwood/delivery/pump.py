"""`Pump`: gives a sender's rules their turn on the running event loop."""

import asyncio
from collections.abc import Callable
from typing import Final

NEVER: Final = float("inf")


class Pump:
    """Calls `turn` soon after an event, and when it is due; `close` when done."""

    def __init__(self, turn: Callable[[float], float]) -> None:
        """`turn` gets the time, and answers when it has something to do though nothing happens."""
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = NEVER
        self._is_closed = False
        self.is_scheduled = False

    def soon(self) -> None:
        """Something happened: all events until the loop comes to it share one turn."""
        if not self.is_scheduled and not self._is_closed:
            self.is_scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """A turn at once."""
        self.is_scheduled = False
        if self._is_closed:
            return
        due = self._turn(self._loop.time())
        # A timer that is early costs an idle turn; to set it anew after each turn costs more.
        # Not `timer.when()`: where it is due at once, uvloop's has none.
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._due = self._loop.call_at(due, self._fire), due

    def _fire(self) -> None:
        self._timer, self._due = None, NEVER
        self.run()

    def close(self) -> None:
        """No turn comes any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
