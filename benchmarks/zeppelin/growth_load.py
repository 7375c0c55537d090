"""The load of nodes that join and leave: reads and writes by our own client, until its input ends.

    python -m benchmarks.zeppelin.growth_load '{"addresses": …, "calls": "FILE", …}'

It fills the table and prints `ready`. Each worker has one request under way; when it ended and how
long it took goes to the file, two doubles each. In the end it looks whether all that was acked is
there, and prints what came of it.
"""

import array
import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from typing import Final

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.zeppelin.client import AsyncKv

AT_ONCE: Final = 500
_NUMBER_BYTES: Final = 16


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What to do where."""

    addresses: list[str]
    user: str
    password: str
    calls: str
    """The file."""
    keys: int
    value_bytes: int
    workers: int


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    calls: int
    written: int
    """Keys that were written after the table was filled."""
    lost: list[str]
    errors: dict[str, int]


class Load:
    """Half reads and half writes; each key is written by one worker alone."""

    def __init__(self, kv: AsyncKv, given: Given) -> None:
        self._kv, self._given = kv, given
        self._random = random.Random(1)
        self._acked: dict[str, bytes] = {}
        self._unsure: set[str] = set()
        self.errors: Counter[str] = Counter()
        self.times = array.array("d")
        self.is_over = asyncio.Event()

    def _value(self, number: int) -> bytes:
        """That no compression makes smaller."""
        return b"%016d" % number + self._random.randbytes(self._given.value_bytes - _NUMBER_BYTES)

    async def fill(self) -> None:
        for start in range(0, self._given.keys, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, self._given.keys))
            await self._kv.set_many({_key(number): self._value(0) for number in numbers})

    async def work(self, worker: int) -> None:
        given, kv, draw = self._given, self._kv, self._random.randrange
        own = range(worker, given.keys, given.workers)
        for number in itertools.count(1):
            if self.is_over.is_set():
                return
            key = _key(own[draw(len(own))])
            began_s = time.monotonic()
            try:
                if number % 2:
                    await kv.get(_key(draw(given.keys)))
                else:
                    value = self._value(number)
                    await kv.set(key, value)
                    self._acked[key] = value
                    self._unsure.discard(key)
            except RaftwoodError as error:
                self.errors[f"{type(error).__name__}: {error}"[:200]] += 1
                self._unsure.add(key)
            ended_s = time.monotonic()
            self.times.extend((ended_s, ended_s - began_s))

    async def said(self) -> Said:
        wanted = {key: value for key, value in self._acked.items() if key not in self._unsure}
        lost: list[str] = []
        names = [*wanted]
        for start in range(0, len(names), AT_ONCE):
            keys = names[start : start + AT_ONCE]
            found = await self._kv.get_many(keys)
            pairs = zip(keys, found, strict=True)
            lost += [key for key, value in pairs if value != wanted[key]]
        return Said(
            calls=len(self.times) // 2,
            written=len(self._acked),
            lost=lost,
            errors=dict(self.errors),
        )


def _key(number: int) -> str:
    return f"key:{number:08}"


async def run(given: Given) -> tuple[Said, "array.array[float]"]:
    async with await AsyncKv.connect(
        given.addresses, user=given.user, password=given.password
    ) as kv:
        load = Load(kv, given)
        await load.fill()
        print("ready", flush=True)
        async with asyncio.TaskGroup() as group:
            for worker in range(given.workers):
                group.create_task(load.work(worker))
            await asyncio.to_thread(sys.stdin.read)
            load.is_over.set()
        return await load.said(), load.times


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=Given)
    said, times = asyncio.run(run(given))
    with open(given.calls, "wb") as file:
        times.tofile(file)
    print(msgspec.json.encode(said).decode())
