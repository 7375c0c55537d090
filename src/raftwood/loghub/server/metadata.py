"""`Metadata`: LogHub's part of the metastore, with a copy in memory of what every request needs.

A watch maintains the copy, so it may lag behind. Nothing relies on a fresh copy: what it lacks is
looked up, and a shard that was split in the meantime refuses puts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import msgspec

from raftwood.base.errors import (
    OutOfRange,
    RaftwoodError,
    ShuttingDown,
    Unavailable,
    UnsupportedVersion,
)
from raftwood.base.logs import get_logger
from raftwood.base.seams import Compare, KeyChange, KeyEntry, MetaStore, SetKey, Versioned
from raftwood.loghub.model import AccessKey, Logstore, Project

COPIED: Final = "loghub/catalog/"
"""All keys below this prefix are copied."""
PROJECTS: Final = f"{COPIED}project/"
LOGSTORES: Final = f"{COPIED}logstore/"
KEYS: Final = f"{COPIED}key/"
ATTEMPTS_MAX: Final = 50
"""Limit of attempts of a change while others change the value too."""
_PAGE: Final = 1000
_PAUSE_S: Final = 0.5

_Value = TypeVar("_Value", bound=msgspec.Struct)
_types: Final[dict[str, type[msgspec.Struct]]] = {
    PROJECTS: Project,
    LOGSTORES: Logstore,
    KEYS: AccessKey,
}
_decoders: Final = {prefix: msgspec.json.Decoder(kind) for prefix, kind in _types.items()}
_encode: Final = msgspec.json.Encoder().encode
_log = get_logger("loghub")


def project_key(project: str) -> str:
    return f"{PROJECTS}{project}"


def logstore_key(project: str, logstore: str) -> str:
    return f"{LOGSTORES}{project}/{logstore}"


def access_key_key(number: str) -> str:
    return f"{KEYS}{number}"


class Metadata:
    """Call `start` first, and `close` when done; the owner of the store closes it."""

    def __init__(self, store: MetaStore) -> None:
        self.store = store
        self._copies: dict[str, tuple[msgspec.Struct, int]] = {}
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._version = 0
        self._watching: asyncio.Task[None] | None = None
        self.is_fresh = False
        """Whether the watch answered the last time."""

    async def start(self) -> None:
        await self._copy_all()
        self._watching = asyncio.create_task(self._watch(), name="watch of LogHub's metadata")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    # The copy

    def copy(self, key: str, kind: type[_Value]) -> _Value | None:
        """Returns the value of a key in the copy."""
        found = self._copies.get(key)
        if found is None:
            return None
        assert isinstance(found[0], kind)
        return found[0]

    def copies(self, prefix: str, kind: type[_Value]) -> list[_Value]:
        """Returns all copied values below a prefix, in order of their keys."""
        found = []
        for key in sorted(each for each in self._copies if each.startswith(prefix)):
            value = self._copies[key][0]
            assert isinstance(value, kind)
            found.append(value)
        return found

    @contextmanager
    def heard(self, key: str, listener: Callable[[], None]) -> Iterator[None]:
        """Calls `listener` when the copy of a key changes, for the duration of the block."""
        listeners = self._listeners.setdefault(key, [])
        listeners.append(listener)
        try:
            yield
        finally:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[key]

    def _keep(self, key: str, value: tuple[msgspec.Struct, int] | None) -> None:
        if value is not None:
            self._copies[key] = value
        elif self._copies.pop(key, None) is None:
            return
        for listener in list(self._listeners.get(key, ())):
            listener()

    async def fresh(self, key: str, kind: type[_Value]) -> _Value | None:
        """Reads the present value from the store."""
        found = await self.versioned(key, kind)
        return None if found is None else found[0]

    async def versioned(self, key: str, kind: type[_Value]) -> tuple[_Value, int] | None:
        """Reads the present value and its version from the store."""
        before = self._copies.get(key)
        found: Versioned | None = await self.store.get(key)
        if found is None:
            if self._copies.get(key) is before:  # else the watch has brought a newer one
                self._keep(key, None)
            return None
        learned = self._learn(key, found.value, found.version)
        assert learned is not None
        assert isinstance(learned[0], kind)
        return learned[0], learned[1]

    def _learn(
        self, key: str, data: bytes, version: int, *, is_told: bool = False
    ) -> tuple[msgspec.Struct, int] | None:
        """Returns the newest known value; None for a key that only newer programs know.

        `is_told` marks values of the watch. An answer that is older than the watch may be of a key
        that was removed since, and is not kept: else a revoked key would stay valid for ever.
        """
        known = self._copies.get(key)
        if known is not None and known[1] >= version:
            return known
        prefix = next((each for each in _decoders if key.startswith(each)), None)
        if prefix is None:
            return None
        try:
            learned = (_decoders[prefix].decode(data), version)
        except msgspec.MsgspecError as error:
            raise UnsupportedVersion(
                f"{key} cannot be read ({error}): a newer program has written it, so use that one"
            ) from error
        if is_told or known is not None or version > self._version:
            self._keep(key, learned)
        return learned

    # Changes

    async def change(
        self, key: str, kind: type[_Value], change: Callable[[_Value | None], _Value | None]
    ) -> _Value | None:
        """Replaces a value by the result of `change`; None removes it.

        `change` may run several times, if others change the value as well. Its errors are raised;
        if it returns the same value, nothing is written.
        """
        for _ in range(ATTEMPTS_MAX):
            found = await self.versioned(key, kind)
            value, version = found if found is not None else (None, 0)
            new = change(value)
            if new is value:
                return new
            data = None if new is None else _encode(new)
            written = await self.store.compare_and_set(key, data, version=version)
            if written is None:
                continue
            self._wrote(key, new, written)
            return new
        raise Unavailable(f"{key} is changed by too many at a time: try again")

    async def remove(self, key: str, *, version: int) -> bool:
        """Removes a key if it has this version; returns whether it did."""
        written = await self.store.compare_and_set(key, None, version=version)
        if written is not None:
            self._wrote(key, None, written)
        return written is not None

    async def set_both(
        self, known: tuple[str, msgspec.Struct, int], new: tuple[str, msgspec.Struct]
    ) -> bool:
        """Changes a value (key, value, version) and creates another (key, value), both or none."""
        (key, value, version), (new_key, new_value) = known, new
        outcome = await self.store.transact(
            [Compare(key, version), Compare(new_key, 0)],
            [SetKey(key, _encode(value)), SetKey(new_key, _encode(new_value))],
        )
        if outcome.held:
            self._wrote(key, value, outcome.version)
            self._wrote(new_key, new_value, outcome.version)
        return outcome.held

    def _wrote(self, key: str, value: msgspec.Struct | None, version: int) -> None:
        known = self._copies.get(key)
        heard = self._version if known is None else known[1]
        if heard > version:
            return  # the watch was faster, with what others have made of it since
        self._keep(key, None if value is None else (value, version))

    async def entries(self, prefix: str) -> AsyncIterator[KeyEntry]:
        """Yields all entries below a prefix, as they are now, in order."""
        start = ""
        while True:
            page = await self.store.range(prefix=prefix, start=start, limit=_PAGE)
            for entry in page.entries:
                yield entry
            if page.next_start is None:
                return
            start = page.next_start

    async def list(self, prefix: str, kind: type[_Value]) -> list[_Value]:
        """Returns all values below a prefix, as they are now."""
        found = []
        async for entry in self.entries(prefix):
            learned = self._learn(entry.key, entry.value, entry.version)
            assert learned is not None
            assert isinstance(learned[0], kind)
            found.append(learned[0])
        return found

    # The watch

    async def _copy_all(self) -> None:
        version: int | None = None
        known: set[str] = set()
        start = ""
        while True:
            page = await self.store.range(prefix=COPIED, start=start, limit=_PAGE)
            version = page.version if version is None else version
            for entry in page.entries:
                known.add(entry.key)
                self._learn(entry.key, entry.value, entry.version, is_told=True)
            if page.next_start is None:
                break
            start = page.next_start
        for key, (_, made) in list(self._copies.items()):
            if key not in known and made <= version:
                self._keep(key, None)
        self._version = version
        self.is_fresh = True

    async def _watch(self) -> None:
        while True:
            try:
                if not self.is_fresh:
                    # A quiet watch does not show that the store answers again; this read does.
                    await self._copy_all()
                async for changes in self.store.watch(COPIED, after_version=self._version):
                    for change in changes:
                        self._take(change)
                        self._version = max(self._version, change.version)
            except ShuttingDown:
                return
            except OutOfRange:
                self.is_fresh = False
            except RaftwoodError as error:
                self.is_fresh = False
                _log.warning("metadata is not watched", reason=error.message)
                await asyncio.sleep(_PAUSE_S)

    def _take(self, change: KeyChange) -> None:
        if change.value is not None:
            self._learn(change.key, change.value, change.version, is_told=True)
            return
        known = self._copies.get(change.key)
        if known is not None and known[1] < change.version:
            self._keep(change.key, None)
