"""The clients of a log: writers, a reader that follows, one that looks back, and one that frees."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError, SequenceForgotten
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import (
    LsnPastEnd,
    LsnTruncated,
    NotLeaseholder,
)
from raftwood.logservice.log_rules import WINDOW
from raftwood.logservice.records import Record
from raftwood.testing import Event, classify
from tests.kits.logservice.log_cluster import CLIENT
from tests.kits.logservice.simulation.records import LOG, Notebook, Stamps

SHARD = 1
BURST_MAX = 2 * WINDOW
_PADDING = (0, 0, 0, 120, 600)
_READ_BYTES = (1, 700, 20_000)
_BACK_MAX = 40
_PAUSE_AFTER_ERROR_S = 0.2
TRUNCATED = "truncated"

Program = Callable[[Environment], Coroutine[Any, Any, None]]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How long to go on, by the loop's clock, and how fast."""

    until: float
    addresses: Sequence[str]
    pause_s: float
    """Between two bursts of a writer, on average."""
    has_leases: bool
    cut_every_s: float
    timeout_ms: int
    big_share: float
    """Of the bursts that are larger than a producer's window."""


class Leases:
    """Ids that rise; shared by all writers, as if an authority gave them out."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last


class Actor:
    """One client on a machine of its own."""

    def __init__(self, name: str, notebook: Notebook, load: Load) -> None:
        self.name = name
        self.notebook = notebook
        self.load = load
        self.client: AsyncLogClient
        self.random: random.Random

    async def run(self, environment: Environment) -> None:
        self.random = random.Random(environment.random.getrandbits(64))
        while self.is_on():
            try:
                self.client = await AsyncLogClient.connect(
                    environment,
                    CLIENT,
                    self.load.addresses,
                    shard=SHARD,
                    timeout_ms=self.load.timeout_ms,
                )
                break
            except RaftwoodError:
                await asyncio.sleep(_PAUSE_AFTER_ERROR_S)
        else:
            return
        async with self.client:
            await self.work()

    def is_on(self) -> bool:
        return asyncio.get_running_loop().time() < self.load.until

    async def work(self) -> None:
        raise NotImplementedError

    async def read(
        self, first: int, *, bytes_max: int = 20_000, wait_ms: int = 0
    ) -> tuple[Event, int]:
        """Read and write down what was read; answers that, and where to go on."""
        notebook = self.notebook
        event = notebook.history.call(self.name, "read", first, key=LOG)
        floor = notebook.cut_acked_max
        try:
            records, next_lsn = await self.client.read(first, bytes_max=bytes_max, wait_ms=wait_ms)
        except LsnTruncated as error:
            notebook.history.finish(event, "failed", TRUNCATED)
            notebook.told_truncated(first, error.first)
            return event, error.first
        except LsnPastEnd as error:
            # As much as a read at the end that finds nothing there.
            event.input = error.next
            notebook.history.finish(event, "ok", read_output([], error.next, is_complete=True))
            return event, error.next
        except RaftwoodError as error:
            notebook.history.finish(event, "failed")
            if classify(error) == "failed" and not error.retriable:
                notebook.breaks(f"a read from {first} on failed: {error!r}")
            await asyncio.sleep(_PAUSE_AFTER_ERROR_S)
            return event, first
        is_complete = next_lsn == first
        notebook.history.finish(event, "ok", read_output(records, next_lsn, is_complete))
        if first <= floor and not self.is_kept(first):
            notebook.breaks(f"LSN {first} was read after {floor} had been truncated")
        return event, next_lsn

    def is_kept(self, lsn: int) -> bool:  # noqa: ARG002
        """Whether a required LSN may keep what was truncated."""
        return True


def read_output(records: Sequence[Record], next_lsn: int, is_complete: bool) -> dict[str, object]:
    """A read as the checkers take it."""
    return {
        "records": [[each.lsn, text_of(each)] for each in records],
        "complete": is_complete,
        "next": next_lsn,
    }


def text_of(record: Record) -> str:
    return bytes(record.payload).decode().rstrip("~")


class Writer(Actor):
    """Bursts of appends that travel together, many under way at a time."""

    def __init__(self, name: str, notebook: Notebook, load: Load, leases: Leases) -> None:
        super().__init__(name, notebook, load)
        self._leases = leases
        self._count = 0
        self._is_refused = False
        self._waiting: dict[asyncio.Future[int], None] = {}

    async def work(self) -> None:
        while self.is_on():
            await asyncio.sleep(self.random.uniform(0, 2 * self.load.pause_s))
            pause_s = self.random.choice((0.0, 0.0, 0.001))
            most = BURST_MAX if self.random.random() < self.load.big_share else 8
            for _ in range(self.random.randint(1, most)):
                self.append()
                if pause_s:
                    await asyncio.sleep(pause_s)  # so that several requests are under way
            chance = self.random.random()
            if self.load.has_leases and chance < (0.1 if self._is_refused else 0.03):
                await self._take_lease()
            elif chance > 0.97:
                await self._take_stamps()
        if self._waiting:
            await asyncio.wait(list(self._waiting), timeout=self.load.timeout_ms / 1000)

    def append(self) -> None:
        self._count += 1
        text = f"{self.name}-{self._count}"
        event = self.notebook.history.call(self.name, "append", text, key=LOG)
        try:
            future = self.client.append_soon(text.ljust(self.random.choice(_PADDING), "~").encode())
        except RaftwoodError:
            self.notebook.history.finish(event, "failed")
            return
        self._waiting[future] = None
        future.add_done_callback(lambda done: self._appended(event, done))

    def _appended(self, event: Event, done: "asyncio.Future[int]") -> None:
        self._waiting.pop(done, None)
        notebook = self.notebook
        error = done.exception()
        if error is None:
            notebook.history.finish(event, "ok", done.result())
            notebook.acked_lsns.append(done.result())
        else:
            is_unknown = isinstance(error, SequenceForgotten)
            notebook.history.finish(event, "unknown" if is_unknown else classify(error))
            self._is_refused = isinstance(error, NotLeaseholder)
            notebook.refused += self._is_refused

    async def _take_lease(self) -> None:
        try:
            await self.client.update_leaseholder_id(self._leases.next())
            self._is_refused = False
        except RaftwoodError:
            await asyncio.sleep(_PAUSE_AFTER_ERROR_S)

    async def _take_stamps(self) -> None:
        history = self.notebook.history
        count = self.random.randint(1, 100)
        called = history._time()
        try:
            first = await self.client.get_tso_timestamp(count)
        except RaftwoodError:
            return
        self.notebook.stamps.append(Stamps(first, first + count, called, history._time()))


class Keyed(Actor):
    """Appends under a name of its own, again and again until it is told where a record stands."""

    async def work(self) -> None:
        number = 0
        while self.is_on():
            number += 1
            await asyncio.sleep(self.random.uniform(0, 2 * self.load.pause_s))
            await self._append(number ^ 3)  # in any order: 2, 1, 0, 7, 6, …

    async def _append(self, sequence: int) -> None:
        history = self.notebook.history
        text = f"{self.name}-{sequence}"
        event = history.call(f"{self.name} {sequence}", "append", text, key=LOG)
        while self.is_on():
            # The same record twice at once, as two processes may that do the same work.
            calls = [
                self.client.append_once(text.encode(), producer=self.name, sequence=sequence)
                for _ in range(self.random.choice((1, 1, 2)))
            ]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            lsns = [each for each in answers if isinstance(each, int)]
            if len(set(lsns)) > 1:
                self.notebook.breaks(f"exactly once: {text} stands at {lsns}")
            if lsns:
                history.finish(event, "ok", lsns[0])
                self.notebook.acked_lsns.append(lsns[0])
                return
            if any(isinstance(each, NotLeaseholder) for each in answers):
                history.finish(event, "failed")
                return
            await asyncio.sleep(_PAUSE_AFTER_ERROR_S)


class Follower(Actor):
    """Reads all there is, in order, and waits at the end for more."""

    async def work(self) -> None:
        first = 1
        while self.is_on():
            bytes_max = self.random.choice(_READ_BYTES)
            _, first = await self.read(first, bytes_max=bytes_max, wait_ms=500)


class Looker(Actor):
    """Reads what was acknowledged just now, or some time ago."""

    async def work(self) -> None:
        while self.is_on():
            await asyncio.sleep(self.random.uniform(0, 2 * self.load.pause_s))
            acked = self.notebook.acked_lsns
            if acked:
                back = self.random.randint(1, min(_BACK_MAX, len(acked)))
                await self.read(acked[-back if self.random.random() < 0.5 else -1])


class Cutter(Actor):
    """Truncates again and again; sometimes keeps an LSN that it requires."""

    _required = 0

    async def work(self) -> None:
        while self.is_on():
            await asyncio.sleep(self.random.uniform(0, 2 * self.load.cut_every_s))
            acked = self.notebook.acked_lsns
            if not acked:
                continue
            lsn = acked[-self.random.randint(1, min(_BACK_MAX, len(acked)))]
            try:
                if self.random.random() < 0.3:
                    await self._cut_and_keep(lsn)
                else:
                    await self._cut(lsn)
            except RaftwoodError:
                continue  # whether it was done shows in what can be read
        await self._let_go()

    async def _cut(self, lsn: int) -> None:
        cut = self.notebook.cut_begins(lsn)
        await self.client.truncate(lsn)
        self.notebook.cut_acked(cut)
        truncated = await self.client.get_truncated_lsn()
        if truncated < lsn:
            self.notebook.breaks(f"{truncated} is truncated after {lsn} had been")
        if not self._required:
            await self.read(lsn)

    def is_kept(self, lsn: int) -> bool:
        return bool(self._required) and lsn >= self._required

    async def _cut_and_keep(self, lsn: int) -> None:
        """What is required can be read until it is let go, whatever is truncated."""
        if lsn <= self.notebook.cut_max:
            return
        self._required = lsn
        await self.client.set_required_lsn(lsn)
        await self._cut(self.notebook.acked_lsns[-1])
        await asyncio.sleep(self.random.uniform(0, 2.0))
        event, next_lsn = await self.read(lsn)
        if event.output == TRUNCATED or (event.outcome == "ok" and next_lsn == lsn):
            self.notebook.breaks(f"LSN {lsn} is required and cannot be read")
        await self.client.set_required_lsn(0)
        self._required = 0

    async def _let_go(self) -> None:
        while self._required:
            try:
                await self.client.set_required_lsn(0)
                self._required = 0
            except RaftwoodError:
                await asyncio.sleep(_PAUSE_AFTER_ERROR_S)
