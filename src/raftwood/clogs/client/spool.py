"""`Spool`: batches on disk until they are stored: an overflow of memory that outlives the process.

A spool's folder has slots, one for each process that uses it; `open_slots` takes the first free
one, and those that ended processes left behind.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NoReturn

import msgspec
from msgspec.structs import replace

from raftwood.base import files as seam
from raftwood.base.compression import Codec
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DiskFull,
    InvalidInput,
    InvariantViolated,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    ShuttingDown,
    StoreDamaged,
    StoreError,
    StoreLocked,
    UnsupportedVersion,
)
from raftwood.base.files import Completion, Files, Operation, explained, perform
from raftwood.base.logs import get_logger
from raftwood.clogs.client.shipping_rules import QueuedBatch
from raftwood.clogs.frames import (
    FRAME_OVERHEAD_BYTES,
    LineBatch,
    decode_message,
    encode_message,
    joined,
)
from raftwood.disk.inspection import Findings, FolderContent
from raftwood.disk.segment_log import DropGroup, LogSettings, Record, Run, SetState, TruncateHead
from raftwood.disk.segment_log.format import KIND_DROP, KIND_HEAD, KIND_RUN
from raftwood.disk.segment_log.recovery import Damage, inspect
from raftwood.disk.segment_log.scan import ScannedRecord
from raftwood.disk.store import Store

ACKS_UNSYNCED_MAX: Final = 256
"""After so many acks the spool is synced: logs know a producer's last 1,024 sequences, and so still
recognize batches that are sent again after a power failure.
"""
WRITING_BYTES_MAX: Final = 8 << 20
"""Limit of bytes on their way to the disk, which are still in memory."""
GROUP_BATCHES_MAX: Final = 16
GROUP_BYTES_MAX: Final = 1 << 20
"""At this size the file's next batch begins another group."""
CLUSTER: Final = "clogs-spool"
"""The cluster's name in a slot's folder."""
REMEDY: Final = (
    "the shipper leaves this slot alone and uses another; its batches are lost unless it is "
    "restored from a backup, so remove the folder once nobody needs it"
)
_SETTINGS: Final = LogSettings(
    segment_bytes=16 << 20,
    cache_bytes_max=0,
    pending_bytes_max=WRITING_BYTES_MAX,
    full_retry_ms=500,
)
_COUNT_BITS: Final = 20
"""An entry's term is its sequence and, in so many bits, its number of lines."""

_log = get_logger("clogs")


class SpoolFailed(StoreError):
    """The disk of a spool failed; nothing more is written to it."""

    code = "clogs_spool_failed"


class SpoolFull(Overloaded):
    """The spool has reached its limit."""

    code = "clogs_spool_full"


class _Owner(msgspec.Struct, frozen=True, array_like=True):
    """What all batches of a group share: the group's state in the log."""

    name: str
    producer: bytes
    dropped: tuple[tuple[int, int], ...] = ()
    """Ranges of indexes behind the head that were given up: these batches are still on disk, but
    were counted as dropped, and later ones may be stored by now.
    """


def _decode_owner(group: int, state: bytes | None) -> _Owner:
    if state is None:
        raise StoreDamaged(f"group {group} of the spool has lost its name")
    try:
        return msgspec.msgpack.decode(state, type=_Owner)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(
            f"what group {group} of the spool is of cannot be read: {error}"
        ) from error


class _Group:
    """A file's batches in the spool."""

    __slots__ = ("dropped", "gone", "head", "key", "next_index", "number", "size")

    def __init__(self, number: int, head: int, next_index: int) -> None:
        self.number = number
        self.key: _Owner | None = None
        """None for a group of an earlier life."""
        self.head = head
        self.next_index = next_index
        self.gone: set[int] = set()
        """Indexes behind the head that are stored or given up."""
        self.dropped: list[tuple[int, int]] = []
        self.size = 0
        """The size of all that was ever written to it."""

    @property
    def is_full(self) -> bool:
        return self.next_index > GROUP_BATCHES_MAX or self.size >= GROUP_BYTES_MAX

    def drop(self, index: int) -> None:
        """Records that a batch behind the head was given up."""
        first = index
        if self.dropped and self.dropped[-1][1] == index:
            first, _ = self.dropped.pop()
        self.dropped.append((first, index + 1))
        self.dropped = [each for each in self.dropped if each[1] > self.head]


class _WatchedFiles:
    """A disk whose failure ends the spool, and nothing else."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        self._files.submit(operations, partial(_answer, callback))


def _answer(callback: Callable[[Completion], None], completion: Completion) -> None:
    with suppress(SpoolFailed):  # the failure was reported; the log writes no more
        callback(completion)


class Spool:
    """One slot; call `open`, and `close` when done."""

    def __init__(self, store: Store, bytes_max: int) -> None:
        self._store = store
        self._log = store.log
        self._bytes_max = bytes_max
        self._groups: dict[int, _Group] = {}
        self._by_owner: dict[_Owner, _Group] = {}
        """The last group of each owner in this life."""
        self._next_group = max(self._log.groups(), default=0) + 1
        self._acks_unsynced = 0
        self._owed_states: dict[int, SetState] = {}
        self._owed: dict[int, Record] = {}
        """By group: records for which there was no room."""
        self._syncing: set[asyncio.Future[None]] = set()
        """Calls that wait for the disk, and must be released if it fails."""
        self.held_bytes = 0
        """The size of frames that are not stored yet; the disk has more, until the log compacts."""
        self.held_batches = 0
        self.is_failed = False
        self.on_failed: Callable[[Spool], None] = _ignore_failure
        """Called once, when nothing more can be written."""

    @classmethod
    async def open(
        cls,
        environment: Environment,
        path: str,
        *,
        bytes_max: int,
        log_settings: LogSettings | None = None,
    ) -> "Spool":
        """Opens a slot; `StoreLocked` if another process has it."""
        found: list[Spool] = []

        def fail(reason: str) -> NoReturn:
            # A library does not end the program it serves: the spool is given up instead.
            for spool in found:
                spool._fail(reason)
            raise SpoolFailed(f"the spool in {path} failed: {reason}")

        own = replace(environment, files=_WatchedFiles(environment.files), end_process=fail)
        settings = log_settings or _SETTINGS
        store = await Store.open(own, path, cluster=CLUSTER, store=1, settings=settings)
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
        """Whether an earlier life left batches, before `recover`."""
        return bool(self._log.groups())

    def recover(self) -> list[QueuedBatch]:
        """Returns what an earlier life left, oldest first per file; bodies are read when due."""
        by_owner: dict[tuple[str, bytes], list[tuple[int, QueuedBatch]]] = {}
        for number in self._log.groups():
            owner = _decode_owner(number, self._log.state(number))
            bounds = self._log.bounds(number)
            group = _Group(number, bounds.head, bounds.next_index)
            indexes = range(bounds.head, bounds.next_index)
            group.gone = {index for index in indexes if _is_in(index, owner.dropped)}
            found = by_owner.setdefault((owner.name, owner.producer), [])
            before = len(found)
            for index, term, frame_bytes in zip(
                indexes, self._log.terms(number), self._log.sizes(number), strict=True
            ):
                if index in group.gone:
                    continue
                entry = self._resumed(owner, term, frame_bytes)
                entry.spool_group, entry.spool_index = number, index
                self.held_bytes += _frame_bytes(entry)
                self.held_batches += 1
                found.append((term, entry))
            if len(found) > before:
                self._groups[number] = group
            else:
                self._owed[number] = DropGroup(number)
        # Batches that stayed in memory until the end were written last, but may be older.
        return [entry for found in by_owner.values() for _, entry in sorted(found, key=_term)]

    def _resumed(self, owner: _Owner, term: int, frame_bytes: int) -> QueuedBatch:
        bare = LineBatch(
            name=owner.name,
            producer=owner.producer,
            sequence=term >> _COUNT_BITS,
            count=term & ((1 << _COUNT_BITS) - 1),
            raw_bytes=0,
            codec=Codec.NONE,
            body=b"",
        )
        entry = QueuedBatch(bare, _ignore)
        entry.batch = None
        entry.size = frame_bytes - FRAME_OVERHEAD_BYTES - len(owner.name.encode())
        entry.was_sent = True  # as far as is known
        entry.spool = self
        return entry

    def keep(self, entry: QueuedBatch, kept: Callable[[], None]) -> None:
        """Writes a batch; `kept` is called when it is durable, unless the spool fails before.

        Raises `SpoolFull`, `DiskFull` or `Overloaded` without room, on the disk or on the way to
        it. Must not be called for an entry that is in the spool already.
        """
        batch = entry.batch
        assert batch is not None
        if self.is_failed:
            raise SpoolFailed(f"the spool in {self.path} failed")
        if self.held_bytes + _frame_bytes(entry) > self._bytes_max:
            raise SpoolFull(
                f"the spool in {self.path} is full with {self.held_bytes} bytes: raise "
                "clogs_client.spool_bytes_max"
            )
        owner = _Owner(batch.name, batch.producer)
        group = self._by_owner.get(owner)
        records: list[Record] = []
        if group is None or group.is_full:
            group = _Group(self._next_group, 1, 1)
            records.append(SetState(group.number, msgspec.msgpack.encode(owner)))
        payload = joined(encode_message(batch.message(system=0, place="")))
        term = batch.sequence << _COUNT_BITS | batch.count
        records.append(Run(group.number, term, group.next_index, 1, payload))
        self._write(records, partial(self._kept, kept))
        if group.key is None:
            self._next_group += 1
            self._by_owner[owner] = self._groups[group.number] = group
            group.key = owner
        entry.spool = self
        entry.spool_group, entry.spool_index = group.number, group.next_index
        group.next_index += 1
        group.size += len(payload)
        self.held_bytes += _frame_bytes(entry)
        self.held_batches += 1

    def _write(self, records: Sequence[Record], done: Callable[[], None]) -> None:
        try:
            self._log.write(records, done)
        except (StoreDamaged, InvariantViolated, ShuttingDown) as error:
            # The log has found damage while it made room, and accepts no more.
            self._fail(error.message)
            raise SpoolFailed(error.message) from error

    def _kept(self, kept: Callable[[], None]) -> None:
        if not self.is_failed:
            kept()

    async def load(self, entry: QueuedBatch) -> LineBatch:
        """Reads a batch's body back; `StoreDamaged` if it is unreadable."""
        is_resumed = self._groups[entry.spool_group].key is None
        runs = await self._log.read(entry.spool_group, entry.spool_index, bytes_max=1)
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
            # Also a batch that this life has taken over from a slot whose disk failed.
            is_resumed=is_resumed or message.is_resumed,
        )

    def forget(self, entry: QueuedBatch) -> None:
        """Removes an entry that is stored or given up."""
        group = self._groups[entry.spool_group]
        self.held_bytes -= _frame_bytes(entry)
        self.held_batches -= 1
        entry.spool = None
        group.gone.add(entry.spool_index)
        head = group.head
        while group.head in group.gone:
            group.gone.remove(group.head)
            group.head += 1
        if group.head == head:
            if entry.is_dropped and group.key is not None:
                group.drop(entry.spool_index)
                owner = _Owner(group.key.name, group.key.producer, tuple(group.dropped))
                self._owed_states[group.number] = SetState(
                    group.number, msgspec.msgpack.encode(owner)
                )
                self._note(is_urgent=True)
            return
        record: Record = TruncateHead(group.number, group.head - 1)
        if group.head == group.next_index:
            record = DropGroup(group.number)
            self._owed_states.pop(group.number, None)
            del self._groups[group.number]
            if group.key is not None and self._by_owner.get(group.key) is group:
                del self._by_owner[group.key]
        self._owed[group.number] = record
        self._note(is_urgent=entry.is_dropped)

    def _note(self, *, is_urgent: bool) -> None:
        """Writes the removals. The next life sends again what is not recorded as removed: it
        recognizes stored batches, but not dropped ones.
        """
        if self.is_failed:
            return
        records: tuple[Record, ...] = (*self._owed_states.values(), *self._owed.values())
        try:
            if is_urgent or self._acks_unsynced + 1 >= ACKS_UNSYNCED_MAX:
                self._log.write(records, _nothing)
                self._acks_unsynced = 0
            else:
                self._log.write(records, written=_nothing)
                self._acks_unsynced += 1
        except (DiskFull, Overloaded):
            return
        except (StoreDamaged, InvariantViolated, ShuttingDown) as error:
            self._fail(error.message)
        self._owed.clear()
        self._owed_states.clear()

    def _fail(self, reason: str) -> None:
        if self.is_failed:
            return
        self.is_failed = True
        _log.error("the spool failed and is written no more", folder=self.path, reason=reason)
        self.on_failed(self)
        for waiting in list(self._syncing):
            _resolve(waiting)

    async def sync(self) -> None:
        """Waits until all that was given is durable, or the spool has failed."""
        if self.is_failed:
            return
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._syncing.add(durable)
        durable.add_done_callback(self._syncing.discard)
        self._log.when_durable(partial(_resolve, durable))
        await durable

    async def close(self) -> None:
        """Releases the slot; all that was given is on disk then, unless the disk failed."""
        if self.is_failed:
            await self._store.abandon()
            return
        loop = asyncio.get_running_loop()
        failing: asyncio.Future[None] = loop.create_future()
        self._syncing.add(failing)
        closing = loop.create_task(self._store.close())
        await asyncio.wait([failing, closing], return_when=asyncio.FIRST_COMPLETED)
        self._syncing.discard(failing)
        if not closing.done():  # a disk that failed would not let it end
            await self._store.abandon()
        (error,) = await asyncio.gather(closing, return_exceptions=True)
        if isinstance(error, DiskFull):
            _log.warning("the spool was closed on a full disk", reason=error.message)


async def readable_lines(files: Files, path: str) -> int:
    """Counts the readable lines of a damaged slot that were not shipped, as far as known."""
    groups: dict[int, dict[int, int]] = {}

    def take(record: ScannedRecord) -> None:
        if record.kind == KIND_DROP:
            groups.pop(record.group, None)
            return
        lines = groups.setdefault(record.group, {})
        if record.kind == KIND_RUN:
            lines[record.index] = record.term & ((1 << _COUNT_BITS) - 1)
        elif record.kind == KIND_HEAD:
            for index in [each for each in lines if each <= record.index]:
                del lines[index]

    await inspect(files, f"{path}/log", take)
    return sum(sum(lines.values()) for lines in groups.values())


async def check_spool(_: Environment, content: FolderContent) -> Findings:
    """Verifies a slot for `raftwood store check`: the owner of each group's batches.

    The batches are records of the log, which has a checksum for each.
    """
    found = Findings(role="a slot of a shipper's spool", remedy=REMEDY)
    batches = 0
    for group, index in sorted(content.groups.items()):
        batches += index.next_index - index.head
        try:
            _decode_owner(group, index.state)
        except StoreDamaged as error:
            found.damages.append(Damage(content.log_path, None, error.message))
    found.checked = f"{batches} batches"
    return found


def _frame_bytes(entry: QueuedBatch) -> int:
    return entry.size + FRAME_OVERHEAD_BYTES + len(entry.name.encode())


def _resolve(durable: "asyncio.Future[None]") -> None:
    if not durable.done():
        durable.set_result(None)


def _is_in(index: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= index < end for first, end in ranges)


def _nothing() -> None:
    """No caller waits."""


def _ignore(_: RaftwoodError | None) -> None:
    """The default until the entry has an owner."""


def _ignore_failure(_: Spool) -> None:
    """The default until a callback is set."""


def _term(found: tuple[int, QueuedBatch]) -> int:
    return found[0]


SLOTS_MAX: Final = 256


class SpoolSlots(msgspec.Struct, frozen=True):
    """The spools of a process: its own, and those with content that ended processes left."""

    own: Spool
    left: list[Spool]


async def open_slots(environment: Environment, folder: str, *, bytes_max: int) -> SpoolSlots:
    """Opens the first free slot, and all other free ones that are not empty.

    An unreadable slot is left for an operator. `InvalidInput` if the folder is unusable, or all
    slots are in use.
    """
    folder = folder.rstrip("/") or "/"
    with explained(folder):
        await perform(environment.files, seam.MakeDirectory(folder))
        (names,) = await perform(environment.files, seam.ListDirectory(folder))
    known = {int(name) for name in names or () if name.isdecimal()}
    own: Spool | None = None
    left: list[Spool] = []
    try:
        for number in range(SLOTS_MAX):
            if own is not None and number not in known:
                continue
            path = f"{folder}/{number}"
            try:
                spool = await Spool.open(environment, path, bytes_max=bytes_max)
            except StoreLocked:
                continue
            except UnsupportedVersion as error:
                _log.error("a slot of the spool is not used", folder=path, reason=error.message)
                continue
            except StoreDamaged as error:
                with explained(path):
                    lines = await readable_lines(environment.files, path)
                _log.error(
                    "a slot of the spool is damaged and left alone: its lines are not shipped",
                    folder=path,
                    lines_that_can_be_read=lines,
                    reason=error.message,
                    remedy=REMEDY,
                )
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
    return SpoolSlots(own, left)
