"""A log of commands in ZooKeeper, with snapshots: what stands in which node, and no more.

    CHROOT/metastore            the format's version
    CHROOT/metastore/mark       which snapshot is the latest, and which entries may be left
    CHROOT/metastore/log/N      entry N, made once and never changed; 0 is empty
    CHROOT/metastore/snapshots/NAME/PIECE

Entry N is made together with a check that N - 1 is there: so N can be made by one writer only, and
only next to the end. Entries are removed from the lowest on and the last one never, so that the end
of the log is where N is there and N + 1 is not.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ZookeeperError,
)

from raftwood.base.errors import InternalError, PermissionDenied, StoreDamaged, UnsupportedVersion
from raftwood.net.zookeeper_connection import CONNECTION_ERRORS, ZooKeeperConnection

FORMAT_VERSION: Final = 1
ENTRY_VERSION: Final = 1
PIECE_BYTES: Final = 512 << 10
WINDOW_MAX: Final = 64
"""So many nodes are asked for at a time."""
_LOADS_MAX: Final = 10


class Trimmed(Exception):
    """The entries that come next are gone: load the snapshot."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What one writer had carried out at a time."""

    version: int
    writer: int
    commands: tuple[tuple[int, bytes], ...]
    """Each with its writer's number for it."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The latest snapshot: the state after entry `applied`; without a name, the empty state."""

    format_version: int
    applied: int = 0
    snapshot: str = ""
    pieces: int = 0
    first: int = 0
    """Entries below this one have been removed."""


class ZooKeeperLog:
    """The nodes of one metastore."""

    def __init__(
        self, connection: ZooKeeperConnection, chroot: str, on_append: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._client = connection.client
        self._root = f"{chroot}/metastore"
        # One function for all watches: the client keeps each one once for a node.
        self._watch = connection.told_by(on_append)

    def _entry(self, index: int) -> str:
        return f"{self._root}/log/{index:020d}"

    def _piece(self, snapshot: str, number: int) -> str:
        return f"{self._root}/snapshots/{snapshot}/{number:06d}"

    async def _ask(self, result: Any) -> Any:
        try:
            return await self._connection.call(result)
        except NoAuthError:
            raise PermissionDenied(
                f"ZooKeeper does not allow this below {self._root}: check its access list"
            ) from None

    async def _ask_all(self, results: Sequence[Any]) -> list[Any]:
        """All answers in order; those that say that a node is not there as errors among them."""
        answers = await asyncio.gather(
            *(self._connection.call(each) for each in results), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NoNodeError):
                raise answer
        return answers

    async def prepare(self) -> None:
        """Make the nodes of an empty store, unless they are there."""
        await self._ask(self._client.ensure_path_async(self._root.rpartition("/")[0]))
        made = self._client.transaction()
        made.create(self._root, b"raftwood metastore")
        made.create(f"{self._root}/log")
        made.create(f"{self._root}/snapshots")
        made.create(f"{self._root}/mark", msgspec.msgpack.encode(Mark(FORMAT_VERSION)))
        made.create(self._entry(0))
        answers = await self._ask(made.commit_async())
        if not isinstance(answers[0], NodeExistsError):
            _raise_first(answers)

    async def _read_mark(self) -> tuple[Mark, int]:
        """The mark, and its node's version."""
        data, stat = await self._ask(self._client.get_async(f"{self._root}/mark"))
        return decode_mark(f"{self._root}/mark", data), stat.version

    async def load(self) -> tuple[int, bytes | None]:
        """Up to which entry the latest snapshot goes, and the snapshot if there is one."""
        for _ in range(_LOADS_MAX):
            await self._ask(self._client.sync_async(self._root))
            mark, _ = await self._read_mark()
            if not mark.snapshot:
                return mark.applied, None
            pieces: list[bytes] = []
            for first in range(0, mark.pieces, WINDOW_MAX):
                numbers = range(first, min(first + WINDOW_MAX, mark.pieces))
                paths = [self._piece(mark.snapshot, number) for number in numbers]
                answers = await self._ask_all([self._client.get_async(path) for path in paths])
                pieces += [answer[0] for answer in answers if isinstance(answer, tuple)]
            if len(pieces) == mark.pieces:
                return mark.applied, b"".join(pieces)
            # A newer snapshot took its place meanwhile.
        raise StoreDamaged(f"the latest snapshot at {self._root} in ZooKeeper lacks a piece")

    async def read(
        self, after: int, take: Callable[[int, Entry, int], None], *, latest: bool
    ) -> None:
        """Give `take` all entries after one, with number and size; watch for the next to be made.

        With `latest`, also what this server has not heard of yet.
        """
        window = 1
        while True:
            asked = [self._client.sync_async(self._root)] if latest else []
            asked.append(self._client.exists_async(self._entry(after + 1), watch=self._watch))
            # Answered in this order: if the end is still there, then nothing behind it was removed.
            asked.append(self._client.exists_async(self._entry(after)))
            next_there, end_there = (await self._ask_all(asked))[-2:]
            if next_there is None and end_there is None:
                raise Trimmed
            if next_there is None:
                return
            while True:
                paths = [self._entry(after + number) for number in range(1, window + 1)]
                answers = await self._ask_all([self._client.get_async(path) for path in paths])
                found = 0
                for answer in answers:
                    if not isinstance(answer, tuple):
                        break
                    after, found = after + 1, found + 1
                    take(after, decode_entry(self._entry(after), answer[0]), len(answer[0]))
                window = min(4 * window, WINDOW_MAX)
                if found < len(paths):
                    break
            latest = False

    async def append(self, index: int, data: bytes) -> bool:
        """Make entry `index`, the one after all that are known; False where another was first."""
        transaction = self._client.transaction()
        transaction.check(self._entry(index - 1), 0)
        transaction.create(self._entry(index), data)
        checked, made = await self._ask(transaction.commit_async())
        if isinstance(checked, NoNodeError):
            raise Trimmed
        if isinstance(made, NodeExistsError):
            return False
        _raise_first((checked, made))
        return True

    async def latest_snapshot(self) -> int:
        return (await self._read_mark())[0].applied

    async def write_snapshot(
        self, applied: int, unique: int, pieces: Iterable[bytes], *, keep_from: int
    ) -> int:
        """Keep a snapshot, make it the latest, and remove entries below `keep_from`.

        Gives its size. Whatever is left of one that was interrupted is removed after the next.
        """
        name = f"{applied:020d}-{unique:016x}"
        mark, version = await self._read_mark()
        count = size = 0
        if mark.applied >= applied:
            return size
        try:
            await self._ask(self._client.create_async(f"{self._root}/snapshots/{name}"))
            for piece in pieces:
                await self._ask(self._client.create_async(self._piece(name, count), piece))
                count, size = count + 1, size + len(piece)
            mark = Mark(FORMAT_VERSION, applied, name, count, mark.first)
            stat = await self._set_mark(mark, version)
        except (BadVersionError, NoNodeError):
            return size  # another client's was first, and takes what is left of this one away
        await self._trim(mark, keep_from)
        with suppress(BadVersionError):  # then the next one removes these entries again, in vain
            await self._set_mark(msgspec.structs.replace(mark, first=keep_from), stat.version)
        return size

    async def _set_mark(self, mark: Mark, version: int) -> Any:
        data = msgspec.msgpack.encode(mark)
        return await self._ask(self._client.set_async(f"{self._root}/mark", data, version=version))

    async def _trim(self, mark: Mark, keep_from: int) -> None:
        """Remove entries, from the lowest on, and other snapshots."""
        for first in range(mark.first, keep_from, WINDOW_MAX):
            indexes = range(first, min(first + WINDOW_MAX, keep_from))
            await self._ask_all([self._client.delete_async(self._entry(each)) for each in indexes])
        snapshots = f"{self._root}/snapshots"
        for name in sorted(await self._ask(self._client.get_children_async(snapshots))):
            if name < mark.snapshot:
                await self._remove_snapshot(f"{snapshots}/{name}")

    async def _remove_snapshot(self, path: str) -> None:
        try:
            pieces = await self._ask(self._client.get_children_async(path))
            for name in pieces:
                await self._ask_all([self._client.delete_async(f"{path}/{name}")])
            await self._ask(self._client.delete_async(path))
        except (NoNodeError, NotEmptyError):
            return  # somebody else is at it; the next snapshot tries again


class _Beginning(msgspec.Struct, array_like=True):
    """What stays the first field in every format to come."""

    version: int


def decode_mark(path: str, data: bytes) -> Mark:
    try:
        version = msgspec.msgpack.decode(data, type=_Beginning).version
        if version > FORMAT_VERSION:
            raise UnsupportedVersion(
                f"{path} in ZooKeeper has format {version}, this program knows up to "
                f"{FORMAT_VERSION}: upgrade it"
            )
        return msgspec.msgpack.decode(data, type=Mark)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreDamaged(f"{path} in ZooKeeper is not a metastore's") from None


def decode_entry(path: str, data: bytes) -> Entry:
    try:
        version = msgspec.msgpack.decode(data, type=_Beginning).version
        if version > ENTRY_VERSION:
            raise UnsupportedVersion(
                f"{path} in ZooKeeper was written by a newer program: upgrade this one"
            )
        return msgspec.msgpack.decode(data, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{path} in ZooKeeper cannot be read: {error}") from None


def _raise_first(answers: Sequence[Any]) -> None:
    """A part of a transaction that failed, as an error of ours."""
    for answer in answers:
        if isinstance(answer, NoAuthError):
            raise PermissionDenied("ZooKeeper does not allow it: check its access list")
        if isinstance(answer, CONNECTION_ERRORS):
            raise answer
    for answer in answers:
        if isinstance(answer, ZookeeperError):
            raise InternalError(f"ZooKeeper refused a transaction: {answer!r}")
