"""The clients of a hub: producers, readers, and operators who split, merge and delete."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from raftwood.base.compression import Codec
from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, NotFound, RaftwoodError, Unavailable
from raftwood.delivery.deliveries import Delivery
from raftwood.loghub.client.gateways import Gateways, HubAccess
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.producer import AsyncProducer, Delivered, ProducerSettings
from raftwood.loghub.client.reader import AsyncReader, ReaderSettings
from raftwood.loghub.errors import (
    DeliveryUnknown,
    LogstoreExists,
    LogstoreNotFound,
    NotDelivered,
    ShardReadonly,
)
from raftwood.loghub.model import AccessKey, Shard, ShardStatus
from raftwood.loghub.shards import contains, hash_key
from raftwood.loghub.wire import CreateLogstore, DeleteLogstore, DeleteShard, MergeShard, SplitShard
from raftwood.net import Secret
from tests.kits.loghub.simulation.link import PROJECT, Link, texts
from tests.kits.loghub.simulation.notebook import Content, Notebook, Sent

LOGSTORE = "s"
WRITABLE = (ShardStatus.READWRITE, ShardStatus.SEALING)
_PAUSE_AFTER_ERROR_S = 0.1
_HEARD_S_MAX = 30.0
"""Within this time every gateway has heard of a change, whatever happens."""
_WRITABLE_MAX = 5
_SHARDS_MAX = 9
_TOGETHER = 3


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How long to go on, by the loop's clock, and how fast."""

    until: float
    key: AccessKey
    addresses: Sequence[str]
    """Of gateways."""
    pause_s: float
    """Between two records of a producer, on average."""
    reshard_every_s: float
    timeout_ms: int


class Actor:
    """One client on a machine of its own."""

    def __init__(self, name: str, notebook: Notebook, load: Load) -> None:
        self.name = name
        self.notebook = notebook
        self.load = load
        self.environment: Environment
        self.link: Link
        self.random: random.Random

    async def run(self, environment: Environment) -> None:
        self.environment = environment
        self.random = random.Random(environment.random.getrandbits(64))
        load = self.load
        self.link = Link(environment, load.key, load.addresses, timeout_ms=load.timeout_ms)
        try:
            await self.work()
        finally:
            await self.link.close()

    def is_on(self) -> bool:
        return asyncio.get_running_loop().time() < self.load.until

    async def pause(self) -> None:
        await asyncio.sleep(_PAUSE_AFTER_ERROR_S)

    async def work(self) -> None:
        raise NotImplementedError

    async def shards(self) -> list[Shard] | None:
        try:
            found = await self.link.shards(LOGSTORE)
        except RaftwoodError:
            await self.pause()
            return None
        self.notebook.saw_shards(found)
        return found


class Producer(Actor):
    """Numbers its records, and has one of them under way until it knows what became of it."""

    _shards: Sequence[Shard] = ()
    _sequence = 0

    async def work(self) -> None:
        numbers: dict[str, int] = {}
        while self.is_on():
            await asyncio.sleep(self.random.uniform(0, 2 * self.load.pause_s))
            key = self.random.choice("abcdefgh")
            numbers[key] = numbers.get(key, 0) + 1
            await self.send(key, numbers[key])

    async def send(self, key: str, number: int) -> None:
        """To the end, also when the time is over: so the last ones show that all goes on."""
        sent = self.notebook.begins(f"{self.name}/{key}/{number}")
        while not await self._send_to(sent, await self._shard_of(key)):
            self._shards = ()

    async def _shard_of(self, key: str) -> int:
        while True:
            for shard in self._shards:
                if shard.status in WRITABLE and contains(
                    shard.begin, shard.end, hash_key(key.encode())
                ):
                    return shard.id
            self._shards = await self.shards() or ()

    async def _send_to(self, sent: Sent, shard: int) -> bool:
        """Whether the record is done with; else it goes to another shard."""
        self._sequence += 1
        is_doubtful = False
        while True:
            try:
                position = await self.link.put(
                    LOGSTORE,
                    shard,
                    sent.text,
                    producer=self.name,
                    sequence=self._sequence,
                )
            except ShardReadonly:
                self.notebook.count("moved")
                return False
            except NotFound as error:
                # Deleted: whether the record went in before, nobody can say.
                self.notebook.is_missing(shard, self.name, error)
                return is_doubtful
            except RaftwoodError:
                self.notebook.count("retried")
                is_doubtful = True
                await self.pause()
            else:
                self.notebook.acked(sent, shard, position)
                return True


class Anonymous(Actor):
    """Puts records without a number of its own, several at once, and each of them once."""

    async def work(self) -> None:
        number = 0
        while self.is_on():
            await asyncio.sleep(self.random.uniform(0, 2 * self.load.pause_s))
            shards = await self.shards()
            if shards is None:
                continue
            writable = [each.id for each in shards if each.status in WRITABLE]
            puts = []
            for _ in range(_TOGETHER):
                number += 1
                puts.append(self._put(self.random.choice(writable), number))
            await asyncio.gather(*puts)

    async def _put(self, shard: int, number: int) -> None:
        sent = self.notebook.begins(f"{self.name}//{number}")
        try:
            position = await self.link.put(LOGSTORE, shard, sent.text)
        except ShardReadonly:
            sent.outcome = "failed"
        except NotFound as error:
            self.notebook.is_missing(shard, self.name, error)
        except RaftwoodError as error:
            if not isinstance(error, Unavailable | DeadlineExceeded):
                self.notebook.breaks(f"{self.name} is refused: {error!r}")
            await self.pause()
        else:
            self.notebook.acked(sent, shard, position)


class Shipper(Actor):
    """Sends many records at once, with the producer that programs use."""

    async def work(self) -> None:
        access = HubAccess(
            addresses=tuple(self.load.addresses),
            access_key=self.load.key.id,
            access_secret=Secret(self.load.key.secret.encode()),
        )
        gateways = Gateways(self.environment, access)
        while True:
            try:
                await gateways.start(timeout_ms=1_000)
                break
            except RaftwoodError:
                await self.pause()
        settings = ProducerSettings(
            codec=Codec.NONE,
            batch_records_max=self.random.choice((1, 4, 100)),
            batch_bytes_max=1_000,
            delivery_timeout_ms=self.random.choice((1_500, 60_000)),
            attempt_timeout_ms=self.load.timeout_ms,
        )
        producer = AsyncProducer(
            self.environment, gateways, project=PROJECT, logstore=LOGSTORE, settings=settings
        )
        await self._ship(producer)
        await producer.close()
        await gateways.close()

    async def _ship(self, producer: AsyncProducer) -> None:
        numbers: dict[str, int] = {}
        while self.is_on():
            await asyncio.sleep(self.random.uniform(0, 2 * self.load.pause_s))
            for _ in range(self.random.randint(1, _TOGETHER)):
                key = self.random.choice("abcdefgh")
                numbers[key] = numbers.get(key, 0) + 1
                sent = self.notebook.begins(f"{self.name}/{key}/{numbers[key]}")
                delivery = await producer.send({"message": sent.text}, key=key)
                delivery.when_done(partial(self._done, sent, delivery))
        with suppress(RaftwoodError):
            await producer.flush()

    def _done(self, sent: Sent, delivery: Delivery[Delivered]) -> None:
        try:
            delivered = delivery.result()
        except NotDelivered:
            sent.outcome = "failed"
        except DeliveryUnknown:
            self.notebook.count("unknown")
        except RaftwoodError as error:
            self.notebook.breaks(f"{sent} was refused: {error!r}")
        else:
            self.notebook.acked(sent, delivered.shard, delivered.position)


class Follower(Actor):
    """Reads every shard to its end, in any order."""

    async def work(self) -> None:
        positions: dict[int, int] = {}
        done: set[int] = set()
        shards = None
        while self.is_on():
            if shards is None or self.random.random() < 0.1:
                shards = await self.shards()
                continue
            wanted = [each for each in shards if each.id not in done]
            if not wanted:
                shards = None
                continue
            shard = self.random.choice(wanted).id
            await self._pull(shard, positions, done)

    async def _pull(self, shard: int, positions: dict[int, int], done: set[int]) -> None:
        try:
            if shard not in positions:
                positions[shard] = await self.link.begin(LOGSTORE, shard)
            start = positions[shard]
            pulled = await self.link.pull(
                LOGSTORE,
                shard,
                start,
                batches_max=self.random.choice((1, 3, 100)),
                wait_ms=self.random.choice((0, 0, 300)),
            )
        except NotFound as error:
            self.notebook.is_missing(shard, self.name, error)
            done.add(shard)
        except RaftwoodError:
            await self.pause()
        else:
            self.notebook.read(self.name, shard, start, pulled)
            positions[shard] = pulled.next
            if pulled.is_ended:
                done.add(shard)


class Tailer(Actor):
    """Reads the whole logstore as it grows, with the reader that programs use."""

    def __init__(self, name: str, notebook: Notebook, load: Load, *, late_s: float) -> None:
        super().__init__(name, notebook, load)
        self._late_s = late_s
        self._seen = notebook.tails.setdefault(name, [])

    async def work(self) -> None:
        await asyncio.sleep(self._late_s)
        client = await self._connected()
        settings = ReaderSettings(
            wait_ms=300, timeout_ms=120_000, skips_freed=True, pull_batches_max=3
        )
        reader = client.reader(PROJECT, LOGSTORE, follow=True, settings=settings)
        reading = asyncio.create_task(self._read(reader))
        while not reading.done() and not self._has_all(reader):
            await asyncio.wait([reading], timeout=_PAUSE_AFTER_ERROR_S)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await reader.close()
        await client.close()

    async def _connected(self) -> AsyncLogHubClient:
        while True:
            try:
                return await AsyncLogHubClient.connect(
                    self.environment,
                    self.load.addresses,
                    access_key=self.load.key.id,
                    access_secret=self.load.key.secret,
                    timeout_ms=1_000,
                )
            except RaftwoodError:
                await self.pause()

    async def _read(self, reader: AsyncReader) -> None:
        try:
            async for record in reader:
                self._seen.append(str(record.contents["message"]))
        except RaftwoodError as error:
            self.notebook.breaks(f"{self.name} was given up: {error!r}")

    def _has_all(self, reader: AsyncReader) -> bool:
        notebook = self.notebook
        if not notebook.is_over:
            return False
        if reader.freed or notebook.is_freed or notebook.archive:
            return True  # what was deleted or freed before, it cannot have
        seen = set(self._seen)
        return all(each.text in seen for each in notebook.sent if each.outcome == "ok")


class Looker(Actor):
    """Reads what was acknowledged just now."""

    async def work(self) -> None:
        while self.is_on():
            await asyncio.sleep(self.random.uniform(0, 2 * self.load.pause_s))
            acked = [each for each in self.notebook.sent[-20:] if each.outcome == "ok"]
            if not acked:
                continue
            sent = self.random.choice(acked)
            try:
                pulled = await self.link.pull(LOGSTORE, sent.shard, sent.position, batches_max=1)
            except NotFound as error:
                self.notebook.is_missing(sent.shard, self.name, error)
                continue
            except RaftwoodError:
                await self.pause()
                continue
            self.notebook.count("looked")
            self.notebook.read(self.name, sent.shard, sent.position, pulled)
            is_freed = self.notebook.is_freed and pulled.first > sent.position
            if not is_freed and (sent.position, sent.text) not in texts(pulled):
                self.notebook.breaks(f"{sent} was acked, and is not read: {texts(pulled)}")


class Operator(Actor):
    """Splits, merges and deletes shards, while others do as well."""

    async def work(self) -> None:
        while self.is_on():
            await asyncio.sleep(self.random.uniform(0, 2 * self.load.reshard_every_s))
            shards = await self.shards()
            if shards is None:
                continue
            try:
                await self._change(shards)
            except RaftwoodError:
                # Refused, or not answered: somebody will finish it.
                await self.pause()

    async def _change(self, shards: Sequence[Shard]) -> None:
        writable = [each for each in shards if each.status is ShardStatus.READWRITE]
        ended = [each for each in shards if each.status is ShardStatus.READONLY]
        if ended and (len(shards) >= _SHARDS_MAX or self.random.random() < 0.2):
            await self._delete(ended[0])
        elif not writable:
            return
        elif len(writable) < self.random.randint(1, _WRITABLE_MAX):
            shard = self.random.choice(writable)
            cut = None if self.random.random() < 0.5 else _inside(shard, self.random)
            split = SplitShard(project=PROJECT, logstore=LOGSTORE, shard=shard.id, key=cut)
            self._saw(await self.link.control(split), "split")
        else:
            shard = self.random.choice(writable)
            merge = MergeShard(project=PROJECT, logstore=LOGSTORE, shard=shard.id)
            self._saw(await self.link.control(merge), "merged")

    def _saw(self, concerned: Sequence[Shard], what: str) -> None:
        self.notebook.count(what)
        for shard in concerned:
            if shard.status is ShardStatus.CREATING or (
                shard.status is ShardStatus.SEALING
                and shard.end_position is None
                and not shard.children
            ):
                self.notebook.breaks(f"{what}, and then half-done: {concerned}")

    async def _delete(self, shard: Shard) -> None:
        """What it holds is written down before, and never changes again."""
        first, records = await self.link.read_shard(LOGSTORE, shard.id)
        self.notebook.archive.setdefault(shard.id, Content(shard, first, records))
        delete = DeleteShard(project=PROJECT, logstore=LOGSTORE, shard=shard.id)
        await self.link.control(delete)
        self.notebook.count("deleted")


def _inside(shard: Shard, source: random.Random) -> str:
    begin, end = int(shard.begin, 16), int(shard.end, 16)
    return f"{source.randint(begin + 1, end - 1):032x}"


class Churner(Actor):
    """Makes a logstore of its own, fills it, reads it, deletes it, and so on."""

    async def work(self) -> None:
        turn = 0
        while self.is_on():
            turn += 1
            await self._create()
            acked = [text for text in self._texts(turn) if await self._put(text)]
            await self._check(acked)
            await self._delete()
            self.notebook.count("churned")

    async def _check(self, acked: list[str]) -> None:
        """A gateway that has not heard yet may show the logstore that had this name before."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _HEARD_S_MAX
        while (found := await self._read()) != acked:
            if found is not None and loop.time() > deadline:
                self.notebook.breaks(f"{self.name} put {acked} to a new logstore, read {found}")
                return
            await self.pause()

    def _texts(self, turn: int) -> list[str]:
        return [f"{self.name}-{turn}-{number}" for number in range(3)]

    async def _create(self) -> None:
        create = CreateLogstore(project=PROJECT, logstore=self.name, shard_count=1)
        while True:
            try:
                await self.link.control(create)
                return
            except LogstoreExists:
                # Made by an attempt that was not answered, or not wholly deleted yet.
                if await self._is_there():
                    return
            except RaftwoodError:
                pass
            await self.pause()

    async def _is_there(self) -> bool:
        try:
            return bool(await self.link.shards(self.name))
        except RaftwoodError:
            return False

    async def _put(self, text: str) -> bool:
        """Until it is taken: nobody else deletes the logstore."""
        self.sequence = getattr(self, "sequence", 0) + 1
        while True:
            try:
                await self.link.put(self.name, 0, text, producer=self.name, sequence=self.sequence)
                return True
            except RaftwoodError:
                await self.pause()

    async def _read(self) -> list[str] | None:
        for _ in range(10):
            try:
                _, records = await self.link.read_shard(self.name, 0)
                return [text for _, text in records]
            except RaftwoodError:
                await self.pause()
        return None

    async def _delete(self) -> None:
        delete = DeleteLogstore(project=PROJECT, logstore=self.name)
        while True:
            try:
                await self.link.control(delete)
                return
            except LogstoreNotFound:
                return
            except RaftwoodError:
                await self.pause()
