"""How long a shard is still this worker's, as its consumer asks before each step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raftwood.loghub.consumer.rules.agent import LeaseAgent


class Tenure:
    """Of one shard in one epoch."""

    def __init__(
        self, agent: LeaseAgent, now_ms: Callable[[], int], *, shard: str, epoch: int
    ) -> None:
        self._agent = agent
        self._now_ms = now_ms
        self._shard = shard
        self._epoch = epoch
        self._last_ms = 0
        self.is_calling = False
        """A call of what the user wrote is under way."""

    def remaining_ms(self) -> int:
        """Also while the shard is being given up: the store's fence lets the last save through."""
        # The agent answers 0 once it has told the consumer to stop.
        deadline_ms = self._agent.deadline_ms(self._shard, self._epoch)
        self._last_ms = max(self._last_ms, deadline_ms)
        return self._last_ms - self._now_ms()

    def may_work(self) -> bool:
        return self._agent.may_work(self._shard, self._epoch, self._now_ms())

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Around each call of what the user wrote: one that hangs loses the shard."""
        self.is_calling = True
        self.goes_on()
        try:
            yield
        finally:
            self.is_calling = False
            self._agent.call_ends(self._shard, self._epoch)

    def goes_on(self) -> None:
        """The call that is under way does not hang."""
        if self.is_calling:
            self._agent.call_begins(self._shard, self._epoch, self._now_ms())
