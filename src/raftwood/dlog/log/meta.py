"""The meta record of a log: one value in a metastore, changed by compare-and-set alone.

`MetaCache` keeps the records that a process reads; they may lag behind the metastore by a bound.
"""

import asyncio
import re
from enum import StrEnum
from typing import Final

import msgspec

from raftwood.base.caches import LruCache
from raftwood.base.compression import Codec
from raftwood.base.errors import (
    InvalidInput,
    InvalidName,
    NotFound,
    StoreDamaged,
    UnsupportedVersion,
)
from raftwood.base.position import Position, position_of_entry
from raftwood.base.seams import MetaStore
from raftwood.dlog.ledgers.metadata import LedgerConfig

FORMAT: Final = 1
_HEAD: Final = b"DLOG" + bytes([FORMAT])
LEDGERS_MAX: Final = 6_000
"""As many as fit into a metastore's largest value (512 KiB), with properties and ledger records at
their largest; beyond it the last ledger goes on until some are shrunk."""
PROPERTIES_BYTES_MAX: Final = 64 << 10
KEYS: Final = "dlog/logs/"
_NAME: Final = re.compile(r"(?=.{1,255}\Z)[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class DlogState(StrEnum):
    """Whether the log takes appends."""

    OPEN = "open"
    TERMINATED = "terminated"


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The choices made when a log is created."""

    ledger: LedgerConfig = LedgerConfig()
    entries_max: int = 1_000_000
    """A ledger with this many entries gets a successor; the limits below work alike."""
    bytes_max: int = 1 << 30
    age_max_ms: int = 24 * 3600 * 1000
    grace_ms: int = 600_000
    """A fenced ledger is not deleted earlier: the fence goes with it, and the writer may be asleep.
    A writer that has not checked for half as long whether it is still the writer checks before it
    acks again."""
    compression: Codec = Codec.NONE
    retention_ms: int = 0
    """Ledgers whose last message is older may be deleted; 0: age does not count."""
    retention_bytes: int = 0
    """The oldest ledgers may be deleted while the log has more; 0: size does not count."""

    def __post_init__(self) -> None:
        if min(self.entries_max, self.bytes_max, self.age_max_ms, self.grace_ms) < 1:
            raise InvalidInput("a ledger's bounds are 1 entry, 1 byte and 1 ms at the least")
        if min(self.retention_ms, self.retention_bytes) < 0:
            raise InvalidInput("a retention is 0, for none, or above")


class LedgerInfo(msgspec.Struct, frozen=True, array_like=True):
    """A ledger of the list; its figures are exact once it is closed."""

    ledger: int
    created_ms: int
    is_closed: bool = False
    last_entry: int = -1
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    """The time of its last entry with messages; 0 if it has none."""
    is_offloaded: bool = False
    fenced_ms: int = 0
    """When a take-over closed it; 0: its own writer did."""

    def may_go(self, *, now_ms: int, grace_ms: int) -> bool:
        """Whether the ledger may be deleted: it was not fenced, or its grace time is over."""
        return self.is_closed and (not self.fenced_ms or now_ms - self.fenced_ms >= grace_ms)

    @property
    def end(self) -> Position:
        """The position behind its last entry."""
        return position_of_entry(ledger=self.ledger, entry=self.last_entry + 1)


class LogMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a log: its list of ledgers, its state and its configuration."""

    token: bytes
    """The log's identity; a later log with the same name has another one."""
    config: LogConfig = LogConfig()
    state: DlogState = DlogState.OPEN
    writer: bytes = b""
    """The writer's token; empty before the first writer."""
    takeovers: int = 0
    first: Position = Position(0)
    """The first readable position."""
    ledgers: tuple[LedgerInfo, ...] = ()
    """In order of their ids."""
    shrunk_bytes: int = 0
    """The size of deleted ledgers."""
    properties: dict[str, str] = {}

    @property
    def is_terminated(self) -> bool:
        return self.state is DlogState.TERMINATED

    @property
    def last_ledger(self) -> int:
        return self.ledgers[-1].ledger if self.ledgers else -1

    def place_of(self, ledger: int) -> int | None:
        """The index of a ledger in the list."""
        return next((at for at, each in enumerate(self.ledgers) if each.ledger == ledger), None)


class _Stored(msgspec.Struct, frozen=True):
    """Positions in parts: 128 bits do not fit a number of msgpack."""

    meta: LogMeta
    first: bytes


_DECODER: Final = msgspec.msgpack.Decoder(_Stored)


def encode_meta(meta: LogMeta) -> bytes:
    first = meta.first.to_bytes(16, "big")
    plain = msgspec.structs.replace(meta, first=Position(0))
    return _HEAD + msgspec.msgpack.encode(_Stored(plain, first))


def decode_meta(data: bytes, *, name: str) -> LogMeta:
    """Decodes a record; `UnsupportedVersion` if a newer program wrote it, else `StoreDamaged`."""
    if data[:4] != _HEAD[:4] or len(data) < 5:
        raise StoreDamaged(f"log {name!r}: its meta record is none: {bytes(data[:8])!r}")
    if data[4] != FORMAT:
        raise UnsupportedVersion(
            f"log {name!r}: its meta record has format {data[4]}, this program reads {FORMAT}: "
            "use a newer one"
        )
    try:
        stored = _DECODER.decode(data[5:])
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidInput) as error:
        raise StoreDamaged(f"log {name!r}: its meta record cannot be read: {error}") from error
    ids = [each.ledger for each in stored.meta.ledgers]
    if ids != sorted(set(ids)) or (ids and ids[0] < 0) or len(stored.first) != 16:
        raise StoreDamaged(f"log {name!r}: the ledgers of its meta record are out of order")
    return msgspec.structs.replace(stored.meta, first=Position(int.from_bytes(stored.first, "big")))


def checked_log_name(name: str) -> str:
    """Checks a log's name: parts like any other name, with slashes between them."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"log name {name[:270]!r} is not allowed: use 1 to 255 letters, digits, '.', '_', '-' "
            "or '/', with a letter or digit at the beginning and behind each '/'"
        )
    return name


def meta_key(name: str) -> str:
    return KEYS + checked_log_name(name)


def checked_properties(properties: dict[str, str]) -> dict[str, str]:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
    if size > PROPERTIES_BYTES_MAX:
        raise InvalidInput(
            f"properties of {size} bytes: a log takes {PROPERTIES_BYTES_MAX}, keep large ones "
            "elsewhere"
        )
    return properties


AGE_MAX_S: Final = 1.0
"""How long what another process has shrunk may still be served."""
RECORDS_MAX: Final = 10_000


class KnownMeta(msgspec.Struct, frozen=True):
    """A record, its version, and when it was read."""

    meta: LogMeta
    version: int
    read_s: float


class MetaCache:
    """The records of all logs that one process reads."""

    def __init__(self, metastore: MetaStore) -> None:
        self._metastore = metastore
        self._known: LruCache[str, KnownMeta] = LruCache(RECORDS_MAX)

    async def get(self, name: str) -> KnownMeta:
        """Returns a record not older than the bound; `NotFound` if there is no such log."""
        known = self._known.get(name)
        if known is not None and asyncio.get_running_loop().time() - known.read_s <= AGE_MAX_S:
            return known
        return await self.read(name)

    async def read(self, name: str) -> KnownMeta:
        """Reads the current record."""
        now_s = asyncio.get_running_loop().time()
        found = await self._metastore.get(meta_key(name))
        if found is None:
            self._known.pop(name)
            raise NotFound(f"there is no log {name!r}")
        return self._keep(
            name, KnownMeta(decode_meta(found.value, name=name), found.version, now_s)
        )

    def note(self, name: str, meta: LogMeta, version: int) -> None:
        """Takes a record that this process has changed."""
        self._keep(name, KnownMeta(meta, version, asyncio.get_running_loop().time()))

    def forget(self, name: str) -> None:
        self._known.pop(name)

    def _keep(self, name: str, known: KnownMeta) -> KnownMeta:
        old = self._known.get(name)
        if old is not None and old.version > known.version:
            return old
        self._known.put(name, known)
        return known

    async def wait_changed(self, name: str, *, version: int, timeout_s: float) -> None:
        """Waits until the record has another version, or the time is over."""
        key = meta_key(name)
        try:
            async with asyncio.timeout(timeout_s):
                # The record may be older than a watch can reach back; the store's version is not.
                page = await self._metastore.range(prefix=key, limit=1)
                if not page.entries or (page.entries[0].key, page.entries[0].version) != (
                    key,
                    version,
                ):
                    return
                async for changes in self._metastore.watch(key, after_version=page.version):
                    if any(change.key == key for change in changes):
                        return
        except TimeoutError:
            pass
