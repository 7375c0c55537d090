"""Records of owners in the metastore; `OwnerRecords` is a copy of all that a watch keeps fresh."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from raftwood.base.errors import OutOfRange, RaftwoodError, ShuttingDown, StoreDamaged
from raftwood.base.logs import get_logger
from raftwood.base.seams import MetaStore
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.ownership import LogOwner, OwnerSeen

KEYS: Final = "dlog/owners/"
_PAGE: Final = 1000
_PAUSE_S: Final = 0.2
_decoder: Final = msgspec.json.Decoder(LogOwner)
_log = get_logger("dlog")


def owner_key(name: str) -> str:
    return KEYS + name


def encode_owner(owner: LogOwner) -> bytes:
    return msgspec.json.encode(owner)


def decode_owner(data: bytes, *, log: str) -> LogOwner:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(f"the owner's record of log {log!r} cannot be read: {error}") from error


async def look_up(store: MetaStore, name: str) -> OwnerSeen:
    """Reads the current record of a log's owner."""
    key = owner_key(name)
    found = await store.range(start=key, end=f"{key}\0", limit=1)
    if not found.entries:
        return OwnerSeen(None, 0, found.version)
    entry = found.entries[0]
    return OwnerSeen(decode_owner(entry.value, log=name), entry.version, found.version)


async def remove_owner(store: MetaStore, name: str) -> None:
    """Removes a log's owner record; the watch notifies the owner, which stops."""
    while True:
        found = await store.get(owner_key(name))
        if found is None or await store.compare_and_set(
            owner_key(name), None, version=found.version
        ):
            return


class OwnerRecords:
    """Use `start`, and `close` when done; `heard` receives each change, with the log's name."""

    def __init__(self, store: MetaStore, heard: Callable[[str, OwnerSeen], None]) -> None:
        self._store = store
        self._heard = heard
        self._known: dict[str, OwnerSeen] = {}
        self._version = 0
        self._watching: asyncio.Task[None] | None = None

    def known(self, name: str) -> OwnerSeen:
        """The record as last seen."""
        return self._known.get(name) or OwnerSeen(None, 0, self._version)

    async def start(self) -> None:
        await self._copy()
        self._watching = asyncio.create_task(self._watch(), name="watch of DLOG's owners")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _copy(self) -> None:
        found: dict[str, OwnerSeen] = {}
        start, version = "", 0
        while True:
            page = await self._store.range(prefix=KEYS, start=start, limit=_PAGE)
            version = version or page.version
            for entry in page.entries:
                name = entry.key.removeprefix(KEYS)
                owner = decode_owner(entry.value, log=name)
                found[name] = OwnerSeen(owner, entry.version, page.version)
            if page.next_start is None:
                break
            start = page.next_start
        # Pages are of different versions: the watch repeats what changed since the first.
        self._version = version
        for name in [each for each in self._known if each not in found]:
            self._tell(name, OwnerSeen(None, 0, version))
        for name, seen in found.items():
            self._tell(name, seen)

    def _tell(self, name: str, seen: OwnerSeen) -> None:
        if seen.owner is None:
            self._known.pop(name, None)
        else:
            self._known[name] = seen
        self._heard(name, seen)

    async def _watch(self) -> None:
        while True:
            try:
                async for changes in self._store.watch(KEYS, after_version=self._version):
                    for change in changes:
                        name = change.key.removeprefix(KEYS)
                        owner = None
                        if change.value is not None:
                            owner = decode_owner(change.value, log=name)
                        version = 0 if owner is None else change.version
                        self._tell(name, OwnerSeen(owner, version, change.version))
                        self._version = max(self._version, change.version)
            except ShuttingDown:
                return
            except OutOfRange:
                await self._copy_again()
            except RaftwoodError as error:
                _log.warning("owners of logs are not heard of", reason=error.message)
            await asyncio.sleep(_PAUSE_S)

    async def _copy_again(self) -> None:
        try:
            await self._copy()
        except RaftwoodError as error:
            _log.warning("owners of logs cannot be read", reason=error.message)


@asynccontextmanager
async def taken_over(dlogs: Dlogs, name: str) -> AsyncIterator[LogWriter]:
    """Opens the log's writer; at the end removes the owner's record, so that the owner stops."""
    writer = await dlogs.open_writer(name)
    try:
        yield writer
        await writer.close()
    finally:
        await writer.abandon()  # does nothing if it is closed
        await remove_owner(dlogs.metastore, name)
