"""A consumer that keeps the rules of its side: it stops by itself before it is thought dead."""

import asyncio
import random
from collections.abc import Callable

from raftwood.base.errors import RaftwoodError
from raftwood.loghub.batches import HEAD_BYTES
from raftwood.loghub.errors import ConsumerMismatch
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.wire import decode_cursor, encode_cursor
from tests.kits.loghub.groups.notebook import Notebook
from tests.kits.loghub.streams import values_of

TIMEOUT_S = 6
BEAT_S = 1.0
WORK_S_MAX = 0.3


class Consumer:
    """Runs until it is stopped, which it does in order, or cancelled, which is a crash."""

    def __init__(
        self,
        name: str,
        *,
        gateway: Callable[[], Gateway],
        notebook: Notebook,
        source: random.Random,
    ) -> None:
        self.name = name
        self._gateway = gateway
        self._notebook = notebook
        self._random = source
        self._told: list[int] = []
        self._deadline = 0.0
        self._is_stopping = False
        self._readers: dict[int, asyncio.Task[None]] = {}
        self.frozen_until = 0.0

    def stop(self) -> None:
        self._is_stopping = True

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not (self._is_stopping and not self._readers):
                await self._thaw()
                await self._beat()
                for shard in self._told:
                    if shard not in self._readers and not self._is_stopping:
                        self._readers[shard] = tasks.create_task(self._read(shard))
                await asyncio.sleep(BEAT_S)

    async def _thaw(self) -> None:
        await asyncio.sleep(max(0.0, self.frozen_until - self._now))

    async def _beat(self) -> None:
        sent = self._now
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self._told = await self._gateway().groups.heartbeat(
                    "p", "s", "g", consumer=self.name, held=sorted(self._readers)
                )
            self._deadline = sent + TIMEOUT_S
        except (RaftwoodError, TimeoutError):
            pass  # the next one may do

    def _may_work(self, shard: int, *, for_s: float = 0.0) -> bool:
        is_mine = shard in self._told and not self._is_stopping
        return is_mine and self._now + for_s < self._deadline

    async def _read(self, shard: int) -> None:
        try:
            cursor = await self._begin_at(shard)
            while self._may_work(shard):
                cursor = await self._process(shard, cursor)
                await asyncio.sleep(0.1)
        except (RaftwoodError, TimeoutError):
            pass  # it begins again if it is told so
        finally:
            del self._readers[shard]

    async def _begin_at(self, shard: int) -> int:
        groups = self._gateway().groups
        (found,) = await groups.checkpoints("p", "s", "g", shard=shard)
        if found.checkpoint:
            return decode_cursor(found.checkpoint)
        return await self._gateway().streams.cursor("p", "s", shard, "begin")

    async def _process(self, shard: int, cursor: int) -> int:
        pulled = await self._gateway().streams.pull("p", "s", shard, cursor, batches_max=4)
        await self._thaw()
        work_s = self._random.uniform(0, WORK_S_MAX)
        if not pulled.batches or not self._may_work(shard, for_s=work_s):
            return pulled.next if not pulled.batches else cursor
        self._notebook.begin(shard, self.name)
        try:
            await asyncio.sleep(work_s)
            for stored in pulled.batches:
                for value in values_of(bytes(stored.data[HEAD_BYTES:])):
                    key, _, number = value.partition("-")
                    self._notebook.note(int(key), int(number))
        finally:
            self._notebook.end(shard)
        await self._check(shard, pulled.next)
        return pulled.next

    async def _check(self, shard: int, position: int) -> None:
        """Until it is taken, or refused because the shard is another's."""
        while True:
            try:
                await self._gateway().groups.set_checkpoint(
                    *("p", "s", "g"),
                    shard=shard,
                    checkpoint=encode_cursor(position),
                    consumer=self.name,
                    is_forced=False,
                )
                return
            except ConsumerMismatch:
                raise
            except RaftwoodError:
                await asyncio.sleep(0.2)
