"""`FileSink`: the lines of each file go to a plain file of its own below a folder.

The sink first writes and syncs lines. Then it durably records the file's length and batches
(`FileState`). Then it acks them. Bytes behind the recorded length were never acked, and are cut
when the sink is opened, so a batch that is sent again is in the file once. Batches that arrive
during a sync share the next one.

Files belong to the sink: it cuts bytes that others append. If rotation moved or emptied a file, it
begins a new one. A receiver knows only its own files: if it does not answer in time and the shipper
sends the batch to another receiver, the files of both may have it.
"""

import asyncio
import errno
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DiskFull,
    InvalidInput,
    Overloaded,
    RaftwoodError,
    SequenceForgotten,
    ShuttingDown,
    Unavailable,
)
from raftwood.base.files import NO_ROOM, Completion, Operation, explained, perform
from raftwood.base.futures import fail
from raftwood.base.logs import get_logger
from raftwood.base.versions import decode_versioned
from raftwood.clogs.frames import ClogsMessage
from raftwood.disk.segment_log import DropGroup, LogSettings, SetState
from raftwood.disk.store import Store

PART_BYTES_MAX: Final = 255
_HASH_BYTES: Final = 16
_ENCODED: Final = re.compile(rb"[^A-Za-z0-9._-]|(?<=^)\.")


def safe_path(name: str) -> str:
    """Returns a relative path without a part that is empty or begins with a dot."""
    parts: list[str] = []
    for each in re.split(r"(?<=[^/])/(?=[^/])", name):
        data = each.encode()
        part = _ENCODED.sub(lambda found: b"%%%02X" % found[0][0], data).decode()
        if len(part) > PART_BYTES_MAX:
            digest = hashlib.blake2b(data, digest_size=_HASH_BYTES).hexdigest()
            part = f"{part[: PART_BYTES_MAX - 2 - len(digest)]}%~{digest}"
        parts.append(part)
    return "/".join(parts)


# The state of one plain file: its good length, and the batches in it. No I/O.

VERSION: Final = 1
WINDOW: Final = 1024
"""How many sequences behind a producer's last one are recorded, as in a log."""
PRODUCERS_MAX: Final = 256
"""Limit of one file; above it, the producer unused for longest is forgotten."""


class ProducerWindow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last sequences of one producer: bit N stands for N below the highest."""

    top: int
    bits: bytes

    def has(self, sequence: int) -> bool:
        if sequence > self.top:
            return False
        behind = self.top - sequence
        if behind >= WINDOW:
            raise SequenceForgotten(
                f"sequence {sequence} is {behind} behind its producer's last one, {self.top}: it "
                "is not known any more whether it was stored"
            )
        return bool(int.from_bytes(self.bits, "little") >> behind & 1)

    def after(self, sequence: int) -> "ProducerWindow":
        top = max(self.top, sequence)
        step, behind = top - self.top, top - sequence
        if behind >= WINDOW:
            return self
        # The shipper chooses the sequences, so the shift must be limited to the window.
        bits = int.from_bytes(self.bits, "little") << step if step < WINDOW else 0
        bits = (bits | 1 << behind) & ((1 << WINDOW) - 1)
        return ProducerWindow(top, bits.to_bytes((bits.bit_length() + 7) // 8, "little"))


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """Made durable before a batch of the file is acked, and after its lines are durable."""

    version: int
    name: str
    length: Annotated[int, msgspec.Meta(ge=0)]
    """Bytes behind this were never acked."""
    producers: dict[bytes, ProducerWindow] = {}
    """In the order in which they last wrote."""

    def has(self, producer: bytes, sequence: int) -> bool:
        """Whether the batch is in the file; `SequenceForgotten` if it is too old to know."""
        window = self.producers.get(producer)
        return window is not None and window.has(sequence)

    def after(self, length: int, batches: list[tuple[bytes, int]]) -> "FileState":
        """Returns the state once these batches are in the file and it has this length."""
        producers = dict(self.producers)
        for producer, sequence in batches:
            window = producers.pop(producer, None) or ProducerWindow(sequence, b"")
            producers[producer] = window.after(sequence)
        while len(producers) > PRODUCERS_MAX:
            del producers[next(iter(producers))]
        return FileState(VERSION, self.name, length, producers)


_encode: Final = msgspec.msgpack.Encoder().encode


def encode_file_state(state: FileState) -> bytes:
    return _encode(state)


def decode_file_state(data: bytes) -> FileState:
    return decode_versioned(
        data,
        FileState,
        version=VERSION,
        name="what is kept of a plain file",
    )


# The sink

PLACE: Final = "files"
STATE_FOLDER: Final = ".raftwood"
"""No shipper's file can have this name: see `checked_file_name`."""
FILES_MAX: Final = 65_536
"""Limit of files whose state is cached; above it the one unused for longest leaves the cache."""
OPEN_MAX: Final = 256
WAITING_BYTES_MAX: Final = 64 << 20
_FILES_PER_ROUND: Final = 32
_SIZES_AT_ONCE: Final = 1024
_LOG: Final = LogSettings(segment_bytes=4 << 20, cache_bytes_max=0)
_OF_NAMES: Final = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)
_log = get_logger("clogs")

LinesOf = Callable[[ClogsMessage], bytes]
"""Returns a batch as text, each line with its end; `InvalidInput` if it cannot be decoded."""


class _Waiting:
    """A batch that is not in the file yet."""

    __slots__ = ("future", "lines", "producer", "sequence")

    def __init__(self, message: ClogsMessage, lines: bytes) -> None:
        self.producer = message.producer
        self.sequence = message.sequence
        self.lines = lines
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: RaftwoodError) -> None:
        fail(self.future, type(error)(error.message))


class _File:
    __slots__ = ("group", "name", "path", "pending", "state", "waiting")

    def __init__(self, name: str, path: str, group: int, state: FileState | None) -> None:
        self.name = name
        self.path = path
        self.group = group
        self.state = state
        """None until a state is recorded."""
        self.waiting: list[_Waiting] = []
        self.pending: dict[tuple[bytes, int], _Waiting] = {}
        """All batches that are not acked, including those that are being written."""


class FileSink:
    """A `Sink`. Call `open`, and `close` when done."""

    def __init__(
        self, environment: Environment, folder: str, lines_of: LinesOf, store: Store
    ) -> None:
        self._environment = environment
        self._folder = folder
        self._lines_of = lines_of
        self._store = store
        self._files: OrderedDict[str, _File] = OrderedDict()
        """The file used last is the last."""
        self._open: OrderedDict[str, None] = OrderedDict()
        """Paths, in the same order."""
        self._next_group = 1
        self._dirty: dict[str, _File] = {}
        self._bytes = 0
        self._wake = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        environment: Environment,
        folder: str,
        lines_of: LinesOf,
        *,
        settings: LogSettings = _LOG,
    ) -> "FileSink":
        """Opens the sink, creates the folder if needed; `StoreLocked` if another process has it."""
        with explained(folder):
            await perform(environment.files, seam.MakeDirectory(folder))
        store = await Store.open(
            environment,
            f"{folder}/{STATE_FOLDER}",
            cluster="clogs-files",
            store=1,
            settings=settings,
        )
        sink = cls(environment, folder, lines_of, store)
        try:
            with explained(folder):
                await sink._recover()
        except BaseException:
            await store.close()
            raise
        sink._task = asyncio.get_running_loop().create_task(sink._drain(), name="plain files")
        sink._task.add_done_callback(sink._ended)
        return sink

    async def close(self) -> None:
        """Writes waiting batches first."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        await perform(self._environment.files, *map(seam.Close, self._open))
        await self._store.close()

    # A `Sink`

    async def locate(self, key: str, name: str) -> str:
        del key, name  # the caller has checked the rights
        return PLACE

    async def store(self, key: str, message: ClogsMessage) -> str:
        del key
        file = self._file(message.name)
        if file.state is not None and file.state.has(message.producer, message.sequence):
            return PLACE
        waiting = file.pending.get((message.producer, message.sequence))
        if waiting is None:
            waiting = self._enqueue(file, message)
        # The batch is written even if its shipper goes away.
        await asyncio.shield(waiting.future)
        return PLACE

    def _enqueue(self, file: _File, message: ClogsMessage) -> _Waiting:
        lines = self._lines_of(message)
        if self._bytes and self._bytes + len(lines) > WAITING_BYTES_MAX:
            raise Overloaded(
                f"{self._bytes} bytes wait to be written to {self._folder}: send it again in a "
                "moment"
            )
        waiting = _Waiting(message, lines)
        file.waiting.append(waiting)
        file.pending[message.producer, message.sequence] = waiting
        self._bytes += len(lines)
        self._dirty[file.name] = file
        self._wake.set()
        return waiting

    def _file(self, name: str) -> _File:
        if self._is_closing or self._task is None or self._task.done():
            raise ShuttingDown(f"nothing is written to {self._folder} any more")
        file = self._files.get(name)
        if file is None:
            while len(self._files) >= FILES_MAX:
                self._forget_one()
            file = _File(name, f"{self._folder}/{safe_path(name)}", self._next_group, None)
            self._next_group += 1
            self._files[name] = file
        else:
            self._files.move_to_end(name)
        return file

    def _forget_one(self) -> None:
        found = next((each for each in self._files.values() if not each.pending), None)
        if found is None:
            raise Overloaded(f"{FILES_MAX} files are being written: send it again in a moment")
        if found.state is not None:
            self._store.log.write((DropGroup(found.group),))
        del self._files[found.name]

    # Writing

    async def _drain(self) -> None:
        while True:
            while self._dirty:
                names = list(self._dirty)[:_FILES_PER_ROUND]
                await self._round([self._dirty.pop(name) for name in names])
            if self._is_closing:
                return
            self._wake.clear()
            await self._wake.wait()

    async def _round(self, files: list[_File]) -> None:
        taken = [(file, file.waiting) for file in files]
        for file in files:
            file.waiting = []
        found = await asyncio.gather(*(self._write(*each) for each in taken))
        states = [
            (file, state, batches)
            for (file, batches), state in zip(taken, found, strict=True)
            if state is not None
        ]
        try:
            await self._note([(file, state) for file, state, _ in states])
        except RaftwoodError as error:
            for file, _, batches in states:
                self._settle(file, batches, error)
            return
        for file, _, batches in states:
            self._settle(file, batches, None)

    async def _write(self, file: _File, batches: list[_Waiting]) -> FileState | None:
        """Writes and syncs lines; returns the state to record. Returns None after a failure: the
        file is then longer than recorded, and the surplus is cut before the next lines.
        """
        try:
            state = await self._begun(file)
            lines = [each.lines for each in batches]
            length = state.length + sum(map(len, lines))
            await self._perform(
                seam.Write(file.path, state.length, lines), seam.DataSync(file.path)
            )
        except OSError as error:
            self._settle(file, batches, self._explained(file, error))
        except RaftwoodError as error:
            self._settle(file, batches, error)
        else:
            return state.after(length, [(each.producer, each.sequence) for each in batches])
        return None

    async def _begun(self, file: _File) -> FileState:
        """Opens the file, and cuts it to the length of its state."""
        (size,) = await perform(self._environment.files, seam.Size(file.path))
        state = file.state
        if state is not None and size == state.length and file.path in self._open:
            self._open.move_to_end(file.path)
            return state
        if state is None or (size or 0) < state.length:
            # Recorded before anything is written, so that after a crash new lines do not pass for
            # old ones.
            state = (state or FileState(VERSION, file.name, 0)).after(size or 0, [])
            await self._note([(file, state)])
        await self._open_file(file.path, is_new=size is None)
        if size is not None and size > state.length:
            await perform(self._environment.files, seam.Truncate(file.path, state.length))
        return state

    async def _open_file(self, path: str, *, is_new: bool) -> None:
        parents = _parents(self._folder, path)
        operations: list[Operation] = [seam.Close(path)]
        if is_new:
            operations.append(seam.MakeDirectory(parents[-1]))
        operations.append(seam.Open(path, create=True))
        if is_new:
            operations += map(seam.SyncDirectory, parents)
        while len(self._open) >= OPEN_MAX and path not in self._open:
            operations.insert(0, seam.Close(self._open.popitem(last=False)[0]))
        self._open.pop(path, None)
        await self._perform(*operations)
        self._open[path] = None

    async def _note(self, states: list[tuple[_File, FileState]]) -> None:
        """Makes the states durable, then visible."""
        if states:
            await self._store.log.commit(
                *(SetState(file.group, encode_file_state(state)) for file, state in states)
            )
        for file, state in states:
            file.state = state

    def _settle(self, file: _File, batches: list[_Waiting], error: RaftwoodError | None) -> None:
        for each in batches:
            del file.pending[each.producer, each.sequence]
            self._bytes -= len(each.lines)
            if error is not None:
                each.fail(error)
            elif not each.future.done():
                each.future.set_result(None)

    async def _perform(self, *operations: Operation) -> None:
        """Like `perform`, but a failed sync ends the process: what it left on disk is unknown."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._environment.files.submit(operations, future.set_result)
        completion = await future
        if completion.error is None:
            return
        if isinstance(completion.failed, seam.DataSync | seam.SyncDirectory):
            self._environment.end_process(
                f"sync of {completion.failed.path} failed: {completion.error}"
            )
        raise completion.error

    def _explained(self, file: _File, error: OSError) -> RaftwoodError:
        if error.errno in NO_ROOM:
            return DiskFull(f"no room for {file.path} ({error}): free space on the disk")
        if error.errno in _OF_NAMES:
            # The storage as a whole is fine: bad names from one shipper must not make all shippers
            # avoid this receiver.
            return InvalidInput(
                f"cannot write to {file.path}: {error}; make room for it there, or give it another "
                "name"
            )
        return Unavailable(f"cannot write to {file.path}: {error}; see to the disk and its rights")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            error = None if task.cancelled() else task.exception()
            _log.error("plain files are not written any more", exc_info=error)
            for file in self._files.values():
                self._settle(
                    file,
                    list(file.pending.values()),
                    Unavailable(f"nothing is written to {self._folder} any more: see the log"),
                )

    # Recovery

    async def _recover(self) -> None:
        log, files = self._store.log, self._environment.files
        for group in log.groups():
            data = log.state(group)
            if data is None:
                continue
            state = decode_file_state(data)
            path = f"{self._folder}/{safe_path(state.name)}"
            self._files[state.name] = _File(state.name, path, group, state)
            self._next_group = group + 1
        known = list(self._files.values())
        for first in range(0, len(known), _SIZES_AT_ONCE):
            part = known[first : first + _SIZES_AT_ONCE]
            sizes = await perform(files, *(seam.Size(each.path) for each in part))
            for file, size in zip(part, sizes, strict=True):
                if file.state is not None and size is not None and size > file.state.length:
                    await perform(
                        files,
                        seam.Open(file.path),
                        seam.Truncate(file.path, file.state.length),
                        seam.DataSync(file.path),
                        seam.Close(file.path),
                    )


def _parents(folder: str, path: str) -> list[str]:
    """Returns the folders from the topmost to the one that a path is in."""
    found = [folder]
    for part in path[len(folder) + 1 :].split("/")[:-1]:
        found.append(f"{found[-1]}/{part}")
    return found
