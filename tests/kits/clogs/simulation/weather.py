"""What happens to the storage and to the ring's configuration, beside all that breaks machines."""

import asyncio
import random
from functools import partial

import msgspec

from raftwood.base.errors import Unavailable
from raftwood.clogs.configuration import (
    HaRules,
    LogServer,
    RingConfiguration,
    accepted,
    encode_configuration,
    text_digest,
)
from raftwood.clogs.configuration_sources import FollowingSource
from raftwood.clogs.frames import ClogsMessage
from tests.kits.clogs.memory_sink import MemorySink, MemoryStorage

PORT = 7290
HA = HaRules(
    check_gap_ms=400, invalid_checks_max=3, isolation_first_ms=400, isolation_longest_ms=3_000
)


class Weather(msgspec.Struct):
    """How the storage is at the moment."""

    unavailable: float = 0.0
    answers_lost: float = 0.0
    """Of what is stored."""
    slow_s: float = 0.0


class WeatheredSink(MemorySink):
    """One receiver's way to the storage."""

    def __init__(self, storage: MemoryStorage, weather: Weather, source: random.Random) -> None:
        super().__init__(storage)
        self._weather = weather
        self._random = source

    async def locate(self, key: str, name: str) -> str:
        await self._hinder()
        return await super().locate(key, name)

    async def store(self, key: str, message: ClogsMessage) -> str:
        await self._hinder()
        place = await super().store(key, message)
        await self._delay()
        if self._random.random() < self._weather.answers_lost:
            raise Unavailable("nobody knows whether it is stored")
        newest = self.storage.of(message.name)[-1].name
        return self._random.choice((place, newest, newest, ""))

    async def _hinder(self) -> None:
        await self._delay()
        if self._random.random() < self._weather.unavailable:
            raise Unavailable("the storage is not available")

    async def _delay(self) -> None:
        if self._weather.slow_s:
            await asyncio.sleep(self._random.random() * self._weather.slow_s)


class Rings:
    """The configuration as it is at the moment, good or not."""

    def __init__(self, addresses: dict[str, tuple[str, int]], source: random.Random) -> None:
        self._addresses = addresses
        self._random = source
        self._history: list[tuple[int, str, bytes]] = []
        self.present = (0, "", b"")
        self.settle()

    @property
    def size(self) -> int:
        """Of a ring with all servers."""
        return len(self._addresses)

    def change(self, files: list[str]) -> None:
        """Another one, one that was before, or one that is no good."""
        turn = self._random.random()
        if turn < 0.25:
            self.present = self._random.choice(self._history)
        elif turn < 0.5:
            version, digest, text = self._history[-1]
            broken = self._random.choice((b"{}", text[:-9], b'{"servers":[]}'))
            # It may have been set so, or have been damaged on its way.
            digest = self._random.choice((digest, text_digest(broken)))
            self.present = (version + 1, digest, broken)
        else:
            names = self._random.sample(list(self._addresses), self._random.randint(1, self.size))
            pins = {
                file: self._random.choice(names) for file in files if self._random.random() < 0.2
            }
            self._set(names, pins)

    def settle(self) -> int:
        """All servers, for good; the version."""
        self._set(list(self._addresses), {})
        return self.present[0]

    def _set(self, names: list[str], pins: dict[str, str]) -> None:
        servers = [
            LogServer(*self._addresses[name], weight=self._random.choice((1, 1, 3)), name=name)
            for name in names
        ]
        text = encode_configuration(RingConfiguration(tuple(servers), ha=HA, pins=pins))
        self.present = (len(self._history) + 1, text_digest(text), text)
        self._history.append(self.present)


class RingSource(FollowingSource):
    """Looks at the present configuration now and then."""

    def __init__(self, rings: Rings) -> None:
        super().__init__("the simulation")
        self._rings = rings

    async def _follow(self) -> None:
        while True:
            self._take(partial(accepted, *self._rings.present))
            await asyncio.sleep(0.3)
