"""A ring of receivers on a thread of its own, for programs without an event loop."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.disk.loop_thread import LoopThread
from tests.kits.clogs.memory_sink import MemoryStorage
from tests.kits.clogs.ring import Ring, settings_of


class RingThread:
    """Receivers by number, all on one storage; each can be stopped and come back."""

    def __init__(self, servers: int = 2) -> None:
        self._thread = LoopThread("clogs ring")
        self._ring = Ring(self._thread.environment)
        self._names = [f"log-{number}" for number in range(servers)]
        for name in self._names:
            self.start(name)

    @property
    def storage(self) -> MemoryStorage:
        return self._ring.storage

    @property
    def names(self) -> Sequence[str]:
        return self._names

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(f"127.0.0.1:{port}" for port in self._ring.ports.values())

    def settings(self, **changes: object) -> ClogsClientSettings:
        """Of a shipper to this ring."""
        return settings_of(**({"servers": self.servers, "exit_ms": 2_000} | changes))

    def start(self, name: str) -> None:
        self._thread.call(self._ring.start(name))

    def stop(self, name: str) -> None:
        self._thread.call(self._ring.stop(name))

    def stop_all(self) -> None:
        for name in self._names:
            self.stop(name)

    def lines(self, name: str) -> list[bytes]:
        return self._ring.storage.lines(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.stop(self._ring.close)
