"""`Pump`: runs a sender's rules on the running event loop."""

import asyncio
from collections.abc import Callable
from typing import Final

NEVER: Final = float("inf")


class Pump:
    """Calls `turn` soon after an event and when its time is due. Call `close` when done."""

    def __init__(self, turn: Callable[[float], float]) -> None:
        """`turn` receives the time, and returns when it must run again even if nothing happens."""
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = NEVER
        self._is_closed = False
        self.is_scheduled = False

    def soon(self) -> None:
        """Schedules a turn; all events until the loop runs it share that turn."""
        if not self.is_scheduled and not self._is_closed:
            self.is_scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Runs a turn at once."""
        self.is_scheduled = False
        if self._is_closed:
            return
        due = self._turn(self._loop.time())
        # A timer that fires too early costs an idle turn; setting a new timer after each turn costs
        # more. `timer.when()` cannot be used: uvloop has none for a timer that is due at once.
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._due = self._loop.call_at(due, self._fire), due

    def _fire(self) -> None:
        self._timer, self._due = None, NEVER
        self.run()

    def close(self) -> None:
        """Stops all further turns."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
