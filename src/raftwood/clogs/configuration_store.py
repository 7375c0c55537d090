"""`ConfigurationStore`: configurations of rings in a metastore; receivers serve them to clients.

Versions never change, and a pointer names the present one. `ConfigurationService` runs in
receivers: one watch per ring answers all long polls.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from raftwood.base.environment import Clock
from raftwood.base.errors import (
    Conflict,
    InvalidConfiguration,
    InvalidInput,
    NotFound,
    OutOfRange,
    Overloaded,
    RaftwoodError,
    ShuttingDown,
    Unavailable,
)
from raftwood.base.logs import get_logger
from raftwood.base.names import checked_name
from raftwood.base.seams import Compare, KeyOperation, MetaStore, RemoveKey, SetKey
from raftwood.clogs.configuration import (
    RingConfiguration,
    VersionedConfiguration,
    accepted,
    check_configuration,
    encode_configuration,
    text_digest,
)
from raftwood.clogs.configuration_sources import FollowingSource
from raftwood.clogs.wire import CONFIGURATION_WAIT_MS_MAX, ConfigurationAnswer, ConfigurationRequest

HISTORY_MAX: Final = 100
"""Limit of versions that are kept, including the present one."""
COMMENT_CHARACTERS_MAX: Final = 500
_TRIES_MAX: Final = 16


class ConfigurationPointer(msgspec.Struct, frozen=True):
    """The version that clients use."""

    version: int
    largest: int
    digest: str


class ConfigurationVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version in the history."""

    version: int
    digest: str
    servers: int
    comment: str
    replaced: int
    """The version that was present before this one; 0 for none."""
    set_at_ms: int
    """In milliseconds since 1970, by the clock of the program that set it; 0 if it had no clock."""


class StoredConfiguration(msgspec.Struct, frozen=True):
    """A version's text, not decoded yet, and the metastore's version of the pointer to it."""

    version: int
    digest: str
    text: bytes
    revision: int

    def accepted(self) -> VersionedConfiguration:
        return accepted(self.version, self.digest, self.text)


class ConfigurationStore:
    """The configurations of one ring."""

    def __init__(self, store: MetaStore, ring: str, *, clock: Clock | None = None) -> None:
        """`clock` gives new versions their time."""
        self._store = store
        self._clock = clock
        self.ring = checked_name("ring", ring)
        self._prefix = f"clogs/{ring}/"
        self._pointer_key = f"{self._prefix}current"

    async def current(self) -> VersionedConfiguration | None:
        """Returns the present configuration; None if none was ever set."""
        found = await self.stored()
        return None if found is None else found.accepted()

    async def stored(self) -> StoredConfiguration | None:
        """Like `current`, but returns the stored form."""
        for _ in range(_TRIES_MAX):
            found = await self._store.get(self._pointer_key)
            if found is None:
                return None
            pointer = _pointer(self.ring, found.value)
            text = await self._store.get(self._version_key(pointer.version))
            if text is not None:
                return StoredConfiguration(
                    pointer.version, pointer.digest, text.value, found.version
                )
            # It was removed after the pointer was read: the pointer names another one by now.
        raise Conflict(f"the configuration of ring {self.ring!r} changes all the time: try again")

    async def following(self) -> AsyncIterator[StoredConfiguration | None]:
        """Yields the stored configuration, and again each time that the pointer changes.

        Errors of the metastore end the iteration. So does `OutOfRange`: begin again then.
        """
        # The store's version is read before the pointer, so that the watch after it misses nothing.
        version = (await self._store.range(prefix=self._pointer_key, limit=1)).version
        yield await self.stored()
        async with AsyncExitStack() as stack:
            watch = self._store.watch(self._pointer_key, after_version=version)
            if isinstance(watch, AsyncGenerator):
                # Otherwise the watch would not be closed if the read of the pointer fails.
                stack.push_async_callback(watch.aclose)
            async for changes in watch:
                if any(change.key == self._pointer_key for change in changes):
                    yield await self.stored()

    async def version(self, number: int) -> VersionedConfiguration:
        """Returns any version that is kept."""
        entry, text = await self._kept(number)
        return accepted(number, entry.digest, text)

    async def set(
        self,
        configuration: RingConfiguration,
        comment: str = "",
        *,
        expected_version: int | None = None,
    ) -> VersionedConfiguration:
        """Makes this the present configuration, under a new version; the same one again makes none.

        `expected_version` must still be the present one, 0 for none; else `Conflict`.
        """
        text = encode_configuration(check_configuration(configuration))
        digest = text_digest(text)
        if len(comment) > COMMENT_CHARACTERS_MAX:
            raise InvalidInput(
                f"the comment has {len(comment)} characters: give {COMMENT_CHARACTERS_MAX} at most"
            )
        for _ in range(_TRIES_MAX):
            before, revision = await self._pointer(expected_version)
            if before.digest == digest:
                return VersionedConfiguration(before.version, digest, configuration)
            number = before.largest + 1
            entry = ConfigurationVersion(
                version=number,
                digest=digest,
                servers=len(configuration.servers),
                comment=comment,
                replaced=before.version,
                set_at_ms=0 if self._clock is None else self._clock.wall_ns() // 1_000_000,
            )
            operations: list[KeyOperation] = [
                SetKey(self._version_key(number), text),
                SetKey(self._history_key(number), msgspec.json.encode(entry)),
                SetKey(
                    self._pointer_key,
                    msgspec.json.encode(ConfigurationPointer(number, number, digest)),
                ),
            ]
            if number > HISTORY_MAX:
                forgotten = number - HISTORY_MAX
                operations += [
                    RemoveKey(self._version_key(forgotten)),
                    RemoveKey(self._history_key(forgotten)),
                ]
            outcome = await self._store.transact(
                (Compare(self._pointer_key, revision),), operations
            )
            if outcome.held:
                return VersionedConfiguration(number, digest, configuration)
        raise self._busy()

    async def rollback(
        self, to: int | None = None, *, expected_version: int | None = None
    ) -> VersionedConfiguration:
        """Makes an older version present again: the one before, or any by number."""
        for _ in range(_TRIES_MAX):
            before, revision = await self._pointer(expected_version)
            if not before.version:
                raise NotFound(f"ring {self.ring!r} has no configuration: set one first")
            number = to if to is not None else await self._replaced(before.version)
            if number == before.version:
                raise InvalidInput(
                    f"version {number} of ring {self.ring!r} counts already: name another one"
                )
            # Check it as clients do: a version that they would refuse must not become present.
            found = await self.version(number)
            pointer = ConfigurationPointer(number, before.largest, found.digest)
            changed = await self._store.compare_and_set(
                self._pointer_key, msgspec.json.encode(pointer), version=revision
            )
            if changed is not None:
                return found
        raise self._busy()

    async def history(self, limit: int = HISTORY_MAX) -> list[ConfigurationVersion]:
        """Returns the versions, the newest first."""
        found = await self._store.range(prefix=f"{self._prefix}history/", limit=2 * HISTORY_MAX)
        entries = [_entry(each.key, each.value) for each in found.entries]
        return entries[::-1][:limit]

    async def _pointer(self, expected_version: int | None) -> tuple[ConfigurationPointer, int]:
        found = await self._store.get(self._pointer_key)
        if found is not None:
            pointer, revision = _pointer(self.ring, found.value), found.version
        else:
            # The pointer may have been removed; even so, no number is used again.
            newest = await self.history(1)
            pointer, revision = ConfigurationPointer(0, newest[0].version if newest else 0, ""), 0
        if expected_version is not None and pointer.version != expected_version:
            raise Conflict(
                f"version {pointer.version} of ring {self.ring!r} counts, not {expected_version}: "
                "look at it, then decide again"
            )
        return pointer, revision

    async def _replaced(self, number: int) -> int:
        entry, _ = await self._kept(number)
        if not entry.replaced:
            raise NotFound(
                f"version {number} of ring {self.ring!r} is the first: there is nothing before it"
            )
        return entry.replaced

    async def _kept(self, number: int) -> tuple[ConfigurationVersion, bytes]:
        key = self._history_key(number)
        entry = await self._store.get(key)
        text = await self._store.get(self._version_key(number))
        if entry is None or text is None:
            raise NotFound(
                f"ring {self.ring!r} has no version {number}, or forgot it: `raftwood clogs config "
                "history` shows those that are kept"
            )
        return _entry(key, entry.value), text.value

    def _busy(self) -> Conflict:
        return Conflict(
            f"others change the configuration of ring {self.ring!r} at the same time: try again"
        )

    def _version_key(self, number: int) -> str:
        return f"{self._prefix}versions/{number:012d}"

    def _history_key(self, number: int) -> str:
        return f"{self._prefix}history/{number:012d}"


def _pointer(ring: str, value: bytes) -> ConfigurationPointer:
    try:
        return msgspec.json.decode(value, type=ConfigurationPointer)
    except msgspec.DecodeError as error:
        raise InvalidConfiguration(
            f"key clogs/{ring}/current cannot be read: {error}; `raftwood meta delete` it, and set "
            "the configuration again"
        ) from error


def _entry(key: str, value: bytes) -> ConfigurationVersion:
    try:
        return msgspec.json.decode(value, type=ConfigurationVersion)
    except msgspec.DecodeError as error:
        raise InvalidConfiguration(f"key {key!r} cannot be read: {error}") from error


# A ring's configuration from a metastore that the client itself reaches.

AGAIN_S: Final = 0.5
"""The pause after an error of the metastore client, which has retried for long already."""


class MetaConfigurationSource(FollowingSource):
    """Follows one ring by a watch."""

    def __init__(self, store: MetaStore, ring: str) -> None:
        super().__init__(f"ring {ring}")
        self._store = ConfigurationStore(store, ring)

    async def _follow(self) -> None:
        while True:
            try:
                async for found in self._store.following():
                    if found is not None:
                        self._take(found.accepted)
                    else:
                        self._complain(no_configuration(self._store.ring))
            except OutOfRange:
                pass  # everything is read and watched again
            except RaftwoodError as error:
                self._complain(error.message)
            await asyncio.sleep(AGAIN_S)


def no_configuration(ring: str) -> str:
    return f"ring {ring!r} has no configuration: set one by `raftwood clogs config set FILE`"


# The receivers' side: one watch per ring answers all long polls.

RINGS_MAX: Final = 64
"""Limit of rings watched at once; clients may name any ring."""
WAITING_MAX: Final = 20_000
_FIRST_S: Final = 5.0
"""How long a request waits for the metastore, even if it does not wait for a change."""
_log = get_logger("clogs")


class ConfigurationService:
    """Answers `wire.CONFIGURATION`; call `start` first, and `close` when done."""

    def __init__(self, store: MetaStore) -> None:
        self._store = store
        self._rings: dict[str, _WatchedRing] = {}
        self._waiting = 0
        self._is_closed = True

    async def start(self) -> None:
        self._is_closed = False

    async def close(self) -> None:
        """Ends waiting requests with `ShuttingDown`."""
        self._is_closed = True
        for ring in list(self._rings.values()):
            await ring.close()
        self._rings.clear()

    async def answer(self, request: ConfigurationRequest) -> ConfigurationAnswer:
        """Returns the present configuration, once it differs from the client's.

        Raises `NotFound` if the ring has none, and `Unavailable` while the metastore does not
        answer: the copy here may be out of date then, and another receiver may have a newer one.
        """
        if self._waiting >= WAITING_MAX:
            raise Overloaded("too many clients wait for configurations here: ask another receiver")
        ring = await self._watched(request.ring)
        self._waiting += 1
        ring.waiting += 1
        try:
            return await self._waited(ring, request)
        finally:
            ring.waiting -= 1
            self._waiting -= 1

    async def _waited(
        self, ring: "_WatchedRing", request: ConfigurationRequest
    ) -> ConfigurationAnswer:
        loop = asyncio.get_running_loop()
        wait_s = max(0, min(request.wait_ms, CONFIGURATION_WAIT_MS_MAX)) / 1000
        deadline = loop.time() + wait_s
        if not ring.is_fresh:
            await ring.wait_changed(loop.time() + max(wait_s, _FIRST_S))
        while True:
            if self._is_closed:
                raise _shut()
            is_over = loop.time() >= deadline
            found = ring.found if ring.is_fresh else None
            # If this receiver lags behind an answer that the client got elsewhere, it catches up
            # first. If it does not catch up, the client's answer came from a metastore that is
            # gone.
            if found is not None and (is_over or found.revision >= request.revision):
                is_known = (found.version, found.digest) == (request.version, request.digest)
                if is_over or not is_known:
                    text = b"" if is_known else found.text
                    return ConfigurationAnswer(found.version, found.digest, text, found.revision)
            if is_over:
                if ring.is_fresh:
                    raise NotFound(no_configuration(request.ring))
                raise Unavailable("the receiver cannot reach its metastore: ask another one")
            await ring.wait_changed(deadline)

    async def _watched(self, name: str) -> "_WatchedRing":
        checked_name("ring", name)
        while not self._is_closed:
            if name in self._rings:
                return self._rings[name]
            if len(self._rings) < RINGS_MAX:
                store = ConfigurationStore(self._store, name)
                return self._rings.setdefault(name, _WatchedRing(store))
            await self._forget_one()
        raise _shut()

    async def _forget_one(self) -> None:
        """Forgets the oldest ring without waiting clients."""
        for name, ring in self._rings.items():
            if not ring.waiting:
                del self._rings[name]
                await ring.close()
                return
        raise Overloaded(f"{RINGS_MAX} rings are watched here already: ask another receiver")


class _WatchedRing:
    """A ring's configuration as the watch shows it, and the requests that wait for a change."""

    def __init__(self, store: ConfigurationStore) -> None:
        self.found: StoredConfiguration | None = None
        self.is_fresh = False
        """The watch is running: `found` is up to date."""
        self.waiting = 0
        self._store = store
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._watch(), name=f"configuration of ring {store.ring}")

    async def wait_changed(self, deadline: float) -> None:
        """Waits until the watch reports something, or the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._tell()

    async def _watch(self) -> None:
        while True:
            try:
                async for found in self._store.following():
                    self.found, self.is_fresh = found, True
                    self._tell()
            except OutOfRange:
                pass  # everything is read and watched again
            except RaftwoodError as error:
                self.is_fresh = False
                _log.warning(
                    "a ring's configuration is not watched",
                    ring=self._store.ring,
                    reason=error.message,
                )
            await asyncio.sleep(AGAIN_S)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _shut() -> ShuttingDown:
    return ShuttingDown("the receiver ends: ask another one")
