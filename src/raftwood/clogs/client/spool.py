"""Batches on disk until they are stored: what memory has no room for, and what must outlive us.

A spool is a slot, a folder that one process has at a time, below the folder that is configured: the
first one that nobody else has. Whoever starts also takes the slots that were left with something in
them, and ships that too. A slot is a segment log (`disk.segment_log`): a group for each file, an
entry for each batch, which is a whole frame.

What is read back after a restart was perhaps sent before: it keeps its producer and sequence, and
is marked as resumed.
"""

from collections.abc import Callable
from typing import Final, NoReturn

import msgspec
from msgspec.structs import replace

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DiskFull,
    InvalidInput,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    StoreDamaged,
    StoreError,
    StoreLocked,
)
from raftwood.base.files import perform
from raftwood.base.logs import get_logger
from raftwood.clogs.batches import LineBatch
from raftwood.clogs.client.entries import Entry
from raftwood.clogs.frames import decode_message, encode_message, joined
from raftwood.disk.segment_log import DropGroup, LogSettings, Run, TruncateHead
from raftwood.disk.store import Store

SLOTS_MAX: Final = 256
ACKS_UNSYNCED_MAX: Final = 256
"""After so many acks the spool is synced: logs know a producer's last 1,024 sequences, so that what
is sent again after a power failure is still known."""
_CLUSTER: Final = "clogs-spool"
_SETTINGS: Final = LogSettings(
    segment_bytes=16 << 20, cache_bytes_max=0, pending_bytes_max=32 << 20, full_retry_ms=500
)

_log = get_logger("clogs")


class SpoolFailed(StoreError):
    """The disk of a spool failed; what it holds is not to be trusted any more."""

    code = "clogs_spool_failed"


class _Group:
    """A file's batches in the spool."""

    __slots__ = ("gone", "head", "key", "next_index", "number")

    def __init__(self, number: int, head: int, next_index: int) -> None:
        self.number = number
        self.key: tuple[str, bytes] | None = None
        """File and producer; None for what an earlier life left."""
        self.head = head
        self.next_index = next_index
        self.gone: set[int] = set()
        """Given up behind the head."""


class Spool:
    """One slot; use `open`, and `close` when done."""

    def __init__(self, store: Store, bytes_max: int) -> None:
        self._store = store
        self._log = store.log
        self._bytes_max = bytes_max
        self._groups: dict[int, _Group] = {}
        self._by_name: dict[tuple[str, bytes], _Group] = {}
        """Groups of this life, by file and producer."""
        self._next_group = max(self._log.groups(), default=0) + 1
        self._acks_unsynced = 0
        self.held_bytes = 0
        self.held_batches = 0
        self.is_failed = False

    @classmethod
    async def open(cls, environment: Environment, path: str, *, bytes_max: int) -> "Spool":
        """`StoreLocked` where another process has the slot."""
        found: list[Spool] = []

        def fail(reason: str) -> NoReturn:
            # A library does not end the program it serves: the spool is given up instead.
            for spool in found:
                spool.is_failed = True
            _log.error("the spool failed and is not used any more", folder=path, reason=reason)
            raise SpoolFailed(f"the spool in {path} failed: {reason}")

        own = replace(environment, end_process=fail)
        store = await Store.open(own, path, cluster=_CLUSTER, store=1, settings=_SETTINGS)
        spool = cls(store, bytes_max)
        found.append(spool)
        return spool

    @property
    def path(self) -> str:
        return self._store.path

    @property
    def is_empty(self) -> bool:
        return not self.held_batches

    @property
    def has_content(self) -> bool:
        """Whether an earlier life left something, before `recover`."""
        return bool(self._log.groups())

    async def recover(self) -> list[Entry]:
        """What an earlier life left, oldest first per file; bodies are read when they are due."""
        entries = []
        for number in self._log.groups():
            bounds = self._log.bounds(number)
            group = _Group(number, bounds.head, bounds.next_index)
            self._groups[number] = group
            found: list[tuple[int, Entry]] = []
            for index in range(bounds.head, bounds.next_index):
                batch = await self._read(number, index)
                entry = Entry(batch, _ignore)
                entry.batch = None
                entry.was_sent = True  # for all that is known
                entry.spool = self
                entry.spool_group, entry.spool_index = number, index
                self.held_bytes += entry.size
                self.held_batches += 1
                found.append((batch.sequence, entry))
            # What was in memory until the end was written last, and may be older.
            entries += [entry for _, entry in sorted(found, key=_sequence)]
        return entries

    def keep(self, entry: Entry, kept: Callable[[], None]) -> None:
        """Write a batch; `kept` is called when it is durable. `DiskFull` and `Overloaded`: no room.

        Not to be called for an entry that is in the spool already.
        """
        batch = entry.batch
        assert batch is not None
        if self.is_failed:
            raise SpoolFailed(f"the spool in {self.path} failed")
        if self.held_bytes + entry.size > self._bytes_max:
            raise Overloaded(
                f"the spool in {self.path} is full with {self.held_bytes} bytes: raise "
                "clogs_client.spool_bytes_max"
            )
        key = (batch.name, batch.producer)
        group = self._by_name.get(key)
        if group is None:
            group = _Group(self._next_group, 1, 1)
        payload = joined(encode_message(batch.message(system=0, place="")))
        self._log.write((Run(group.number, 0, group.next_index, 1, payload),), kept)
        if group.next_index == 1:
            self._next_group += 1
            self._by_name[key] = self._groups[group.number] = group
            group.key = key
        entry.spool = self
        entry.spool_group, entry.spool_index = group.number, group.next_index
        group.next_index += 1
        self.held_bytes += entry.size
        self.held_batches += 1

    async def load(self, entry: Entry) -> LineBatch:
        """A batch's body again; `StoreDamaged` where it cannot be read."""
        batch = await self._read(entry.spool_group, entry.spool_index)
        return replace(batch, is_resumed=self._groups[entry.spool_group].key is None)

    def forget(self, entry: Entry) -> None:
        """The entry is stored, or given up."""
        group = self._groups[entry.spool_group]
        self.held_bytes -= entry.size
        self.held_batches -= 1
        group.gone.add(entry.spool_index)
        head = group.head
        while group.head in group.gone:
            group.gone.remove(group.head)
            group.head += 1
        entry.spool = None
        if group.head == head or self.is_failed:
            return
        is_done = group.head == group.next_index
        if is_done:
            del self._groups[group.number]
            if group.key is not None:
                del self._by_name[group.key]
        record = DropGroup(group.number) if is_done else TruncateHead(group.number, group.head - 1)
        self._acks_unsynced += 1
        if self._acks_unsynced >= ACKS_UNSYNCED_MAX:
            self._acks_unsynced = 0
            self._log.write((record,), _nothing)
        else:
            self._log.write((record,), written=_nothing)

    async def sync(self) -> None:
        """Wait until all that was given is durable."""
        if not self.is_failed:
            await self._log.sync()

    async def close(self) -> None:
        try:
            await self._store.close()
        except DiskFull as error:
            _log.warning("the spool was closed on a full disk", reason=error.message)

    async def _read(self, group: int, index: int) -> LineBatch:
        runs = await self._log.read(group, index, bytes_max=1)
        try:
            message = decode_message(runs[0].payload)
        except ProtocolError as error:
            raise StoreDamaged(f"a batch in the spool {self.path} is damaged: {error}") from error
        return LineBatch(
            name=message.name,
            producer=message.producer,
            sequence=message.sequence,
            count=message.count,
            raw_bytes=message.raw_bytes,
            codec=message.codec,
            body=message.body,
            is_resumed=True,
        )


def _nothing() -> None:
    """Nobody waits."""


def _ignore(_: RaftwoodError | None) -> None:
    """Until somebody takes the entry over."""


def _sequence(found: tuple[int, Entry]) -> int:
    return found[0]


class Slots(msgspec.Struct, frozen=True):
    """The spools of a process: its own, and those that others left with something in them."""

    own: Spool
    left: list[Spool]


async def open_slots(environment: Environment, folder: str, *, bytes_max: int) -> Slots:
    """The first slot that is free, and all others that are free and not empty."""
    folder = folder.rstrip("/") or "/"
    await perform(environment.files, seam.MakeDirectory(folder))
    (names,) = await perform(environment.files, seam.ListDirectory(folder))
    known = sorted(int(name) for name in names or () if name.isdecimal())
    own: Spool | None = None
    left: list[Spool] = []
    try:
        for number in range(SLOTS_MAX):
            if own is not None and number not in known:
                continue
            try:
                spool = await Spool.open(environment, f"{folder}/{number}", bytes_max=bytes_max)
            except StoreLocked:
                continue
            if own is None:
                own = spool
            elif spool.has_content:
                left.append(spool)
            else:
                await spool.close()
    except BaseException:
        for spool in [*left, *([own] if own else [])]:
            await spool.close()
        raise
    if own is None:
        raise InvalidInput(
            f"all {SLOTS_MAX} slots of the spool {folder} are in use: give another spool_folder"
        )
    return Slots(own, left)
