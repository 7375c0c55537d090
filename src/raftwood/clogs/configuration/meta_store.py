"""Rings' configurations in a metastore: versions that never change, and a pointer to one of them.

    clogs/<ring>/current            which version counts, and the largest there ever was
    clogs/<ring>/versions/<number>  its canonical text
    clogs/<ring>/history/<number>   who came before it, when and why it was set

All of a change is one transaction on the pointer's version, so that of two who change it at once
one is told. A roll-back moves the pointer to an older version: a smaller number.
"""

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
)
from raftwood.base.names import checked_name
from raftwood.base.seams import Compare, KeyOperation, MetaStore, RemoveKey, SetKey
from raftwood.clogs.configuration.text import (
    accepted,
    check_configuration,
    encode_configuration,
    text_digest,
)
from raftwood.clogs.model import RingConfiguration, VersionedConfiguration

HISTORY_MAX: Final = 100
"""Versions that are kept, the present one among them."""
COMMENT_CHARACTERS_MAX: Final = 500
_TRIES_MAX: Final = 16


class Pointer(msgspec.Struct, frozen=True):
    """Which version counts."""

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
    """The version that counted before it was set; 0 for none."""
    set_at_ms: int
    """Since 1970, by the clock of whoever set it; 0 where that had none."""


class Stored(msgspec.Struct, frozen=True):
    """A version's text, not read yet, and the metastore's version of the pointer to it."""

    version: int
    digest: str
    text: bytes
    revision: int

    def accepted(self) -> VersionedConfiguration:
        return accepted(self.version, self.digest, self.text)


class ConfigurationStore:
    """One ring's configurations."""

    def __init__(self, store: MetaStore, ring: str, *, clock: Clock | None = None) -> None:
        """`clock` dates what is set."""
        self._store = store
        self._clock = clock
        self.ring = checked_name("ring", ring)
        self._prefix = f"clogs/{ring}/"
        self._pointer_key = f"{self._prefix}current"

    async def current(self) -> VersionedConfiguration | None:
        """The one that counts; None where none was ever set."""
        found = await self.stored()
        return None if found is None else found.accepted()

    async def stored(self) -> Stored | None:
        """As `current`, but as it stands there."""
        for _ in range(_TRIES_MAX):
            found = await self._store.get(self._pointer_key)
            if found is None:
                return None
            pointer = _pointer(self.ring, found.value)
            text = await self._store.get(self._version_key(pointer.version))
            if text is not None:
                return Stored(pointer.version, pointer.digest, text.value, found.version)
            # It was forgotten after the pointer was read: the pointer is another one by now.
        raise Conflict(f"the configuration of ring {self.ring!r} changes all the time: try again")

    async def following(self) -> AsyncIterator[Stored | None]:
        """What is stored now, then again each time that another one counts.

        Errors of the metastore end it. So does `OutOfRange`: begin again then.
        """
        # The store's version, read before the pointer: a watch after it misses nothing.
        version = (await self._store.range(prefix=self._pointer_key, limit=1)).version
        yield await self.stored()
        async with AsyncExitStack() as stack:
            watch = self._store.watch(self._pointer_key, after_version=version)
            if isinstance(watch, AsyncGenerator):
                # Else it would be left to be closed by nobody while the pointer is read.
                stack.push_async_callback(watch.aclose)
            async for changes in watch:
                if any(change.key == self._pointer_key for change in changes):
                    yield await self.stored()

    async def version(self, number: int) -> VersionedConfiguration:
        """Any that is kept."""
        entry, text = await self._kept(number)
        return accepted(number, entry.digest, text)

    async def set(
        self,
        configuration: RingConfiguration,
        comment: str = "",
        *,
        expected_version: int | None = None,
    ) -> VersionedConfiguration:
        """Let this one count from now on, under a new version; the present one again is none.

        `expected_version` is the one that must count still, 0 for none; `Conflict` where it does
        not.
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
                SetKey(self._pointer_key, msgspec.json.encode(Pointer(number, number, digest))),
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
        """Let an older one count again: the one that the present one replaced, or any by name."""
        for _ in range(_TRIES_MAX):
            before, revision = await self._pointer(expected_version)
            if not before.version:
                raise NotFound(f"ring {self.ring!r} has no configuration: set one first")
            number = to if to is not None else await self._replaced(before.version)
            if number == before.version:
                raise InvalidInput(
                    f"version {number} of ring {self.ring!r} counts already: name another one"
                )
            # Read as clients will: what they would refuse must not count.
            found = await self.version(number)
            pointer = Pointer(number, before.largest, found.digest)
            changed = await self._store.compare_and_set(
                self._pointer_key, msgspec.json.encode(pointer), version=revision
            )
            if changed is not None:
                return found
        raise self._busy()

    async def history(self, limit: int = HISTORY_MAX) -> list[ConfigurationVersion]:
        """What was set, the newest first."""
        found = await self._store.range(prefix=f"{self._prefix}history/", limit=2 * HISTORY_MAX)
        entries = [_entry(each.key, each.value) for each in found.entries]
        return entries[::-1][:limit]

    async def _pointer(self, expected_version: int | None) -> tuple[Pointer, int]:
        found = await self._store.get(self._pointer_key)
        if found is not None:
            pointer, revision = _pointer(self.ring, found.value), found.version
        else:
            # Somebody may have removed it: no number is ever used again all the same.
            newest = await self.history(1)
            pointer, revision = Pointer(0, newest[0].version if newest else 0, ""), 0
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


def _pointer(ring: str, value: bytes) -> Pointer:
    try:
        return msgspec.json.decode(value, type=Pointer)
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
