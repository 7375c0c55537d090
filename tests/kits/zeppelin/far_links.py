"""A master whose slave is far from it, or behind a slow link, with clients in a closed loop: the
real rules of sending and pacing, on a link that has a round trip and a rate.
"""

from collections import deque
from typing import Final

from raftwood.zeppelin.model import Gap, NodeId, PartitionId
from raftwood.zeppelin.replication.master import AckPace
from raftwood.zeppelin.replication.sender import SenderRules

STEP_MS: Final = 10
RECORD_BYTES: Final = 10_000
FAR = NodeId("far")


class FarMaster:
    """Each client writes a record, waits for its answer, and then writes the next one."""

    def __init__(
        self, *, round_trip_ms: int, bytes_per_s: int, clients: int = 0, lump_ms: int = STEP_MS
    ) -> None:
        """Acks come all together once in `lump_ms`."""
        self.rules = SenderRules()
        self.feed = self.rules.begin(PartitionId(1, 0), session=1, first=1)
        self.pace = AckPace(lag_max_bytes=64 << 20, is_of_slaves=False)
        self.clients = clients
        self.target: NodeId | None = None
        """That is to catch up."""
        self.now_ms = 0
        self.last = self.told = 0
        self.is_beginning = False
        """Its epoch begins: nothing is done by now."""
        self.longest_ms = 0
        """That an answer has waited, since somebody set this to 0."""
        self._round_trip_ms, self._bytes_per_s, self._lump_ms = round_trip_ms, bytes_per_s, lump_ms
        self._free_ms = 0.0
        """When the link has taken what was sent."""
        self._flying: deque[tuple[float, int]] = deque()
        self._waiting: deque[tuple[int, int]] = deque()

    def run(self, seconds: float) -> int:
        """How many writes were answered."""
        told = self.told
        for _ in range(int(seconds * 1_000 / STEP_MS)):
            self.step()
        return self.told - told

    def step(self) -> None:
        self.now_ms += STEP_MS
        while self._flying and self._flying[0][0] <= self.now_ms:
            has = self._flying.popleft()[1]
            self.rules.acked(self.feed, sequence=has, arrived=has, now_ms=self.now_ms)
        self.told = max(self.told, self._tell())
        while self._waiting and self._waiting[0][0] <= self.told:
            self.longest_ms = max(self.longest_ms, self.now_ms - self._waiting.popleft()[1])
        for _ in range(self.told + self.clients - self.last):
            self.last += 1
            self._waiting.append((self.last, self.now_ms))
        self._send()

    def _tell(self) -> int:
        return self.pace.allowed(
            0 if self.is_beginning else self.last,
            {FAR: self.feed},
            last=self.last,
            now_ms=self.now_ms,
            target=self.target,
        )

    def _send(self) -> None:
        rules = self.rules
        rules.grown(self.feed.partition, self.last)
        while (feed := rules.next()) is not None:
            unsent = self.last + 1 - feed.next
            count = min(unsent, max(1, rules.slice_bytes // RECORD_BYTES))
            size = count * RECORD_BYTES
            rules.sent(feed, count=count, size=size, now_ms=self.now_ms)
            self._free_ms = max(self._free_ms, self.now_ms) + 1_000 * size / self._bytes_per_s
            acked_ms = self._free_ms + self._round_trip_ms
            acked_ms += -acked_ms % self._lump_ms
            self._flying.append((acked_ms, feed.next - 1))
            rules.grown(feed.partition, self.last)

    @property
    def queued_ms(self) -> float:
        """So long it takes until something that is sent now is on its way."""
        return max(0.0, self._free_ms - self.now_ms)

    @property
    def gap(self) -> Gap:
        return self.feed.gap(self.last)

    @property
    def drain_ms(self) -> float:
        """How long it really takes until the slave has everything."""
        unsent_bytes = (self.last + 1 - self.feed.next) * RECORD_BYTES
        return self.queued_ms + 1_000 * unsent_bytes / self._bytes_per_s + self._round_trip_ms
