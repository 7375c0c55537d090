"""Durable cursors: a reader's position in a log, each a key of its own in the metastore."""

from typing import Final

import msgspec

from raftwood.base.errors import Conflict, NotFound, StoreDamaged, UnsupportedVersion
from raftwood.base.names import checked_name
from raftwood.base.position import Position, position_from_bytes, position_to_bytes
from raftwood.base.seams import MetaStore
from raftwood.dlog.log.meta import checked_log_name

KEYS: Final = "dlog/cursors/"
FORMAT: Final = 1
_HEAD: Final = b"DLCU" + bytes([FORMAT])
_ATTEMPTS: Final = 16
_PAGE: Final = 500


class LogCursor(msgspec.Struct, frozen=True):
    """A cursor: its reader has dealt with everything below `position`."""

    name: str
    position: Position
    retains: bool
    """Whether the log's retention spares what the reader has not dealt with."""
    version: int


class _Stored(msgspec.Struct, frozen=True):
    position: bytes
    retains: bool


_DECODER: Final = msgspec.msgpack.Decoder(_Stored)


def encode_cursor(position: Position, *, retains: bool) -> bytes:
    return _HEAD + msgspec.msgpack.encode(_Stored(position_to_bytes(position), retains))


def decode_cursor(data: bytes, *, name: str, version: int) -> LogCursor:
    """Decodes a cursor; `UnsupportedVersion` if a newer program wrote it."""
    if data[:4] != _HEAD[:4] or len(data) < 5:
        raise StoreDamaged(f"cursor {name!r} is none: {bytes(data[:8])!r}")
    if data[4] != FORMAT:
        raise UnsupportedVersion(
            f"cursor {name!r} has format {data[4]}, this program reads {FORMAT}: use a newer one"
        )
    try:
        stored = _DECODER.decode(data[5:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"cursor {name!r} cannot be read: {error}") from error
    if len(stored.position) != 16:
        raise StoreDamaged(f"cursor {name!r} has no position")
    return LogCursor(name, position_from_bytes(stored.position), stored.retains, version)


class LogCursors:
    """The cursors of one log."""

    def __init__(self, metastore: MetaStore, log: str) -> None:
        self._metastore = metastore
        self._prefix = f"{KEYS}{checked_log_name(log)}//"

    def _key(self, name: str) -> str:
        return self._prefix + checked_name("cursor", name)

    async def get(self, name: str) -> LogCursor:
        found = await self._metastore.get(self._key(name))
        if found is None:
            raise NotFound(f"there is no cursor {name!r}")
        return decode_cursor(found.value, name=name, version=found.version)

    async def move(
        self, name: str, position: Position, *, retains: bool = False, version: int | None = None
    ) -> LogCursor:
        """Sets a cursor, or creates it; with a `version` (0: absent), only if that is current."""
        value = encode_cursor(position, retains=retains)
        for _ in range(_ATTEMPTS):
            if version is None:
                found = await self._metastore.get(self._key(name))
                expected = 0 if found is None else found.version
            else:
                expected = version
            new = await self._metastore.compare_and_set(self._key(name), value, version=expected)
            if new is not None:
                return LogCursor(name, position, retains, new)
            if version is not None:
                break
        raise Conflict(f"cursor {name!r} was moved by others: read it again, then decide")

    async def remove(self, name: str) -> None:
        """Removes a cursor; does nothing if it is gone."""
        for _ in range(_ATTEMPTS):
            found = await self._metastore.get(self._key(name))
            if found is None:
                return
            done = await self._metastore.compare_and_set(
                self._key(name), None, version=found.version
            )
            if done is not None:
                return
        raise Conflict(f"cursor {name!r} was moved by others again and again: try again")

    async def all(self) -> list[LogCursor]:
        cursors: list[LogCursor] = []
        start: str | None = ""
        while start is not None:
            page = await self._metastore.range(prefix=self._prefix, start=start, limit=_PAGE)
            cursors += (
                decode_cursor(
                    each.value, name=each.key.removeprefix(self._prefix), version=each.version
                )
                for each in page.entries
            )
            start = page.next_start
        return cursors
