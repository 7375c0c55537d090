"""Sources of a ring's configuration for clients: a file, or the receivers by long polls.

Each source keeps the last good configuration, and yields each change to its followers. The source
on a metastore is in `configuration_store`.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, NotFound, RaftwoodError
from raftwood.base.files import Close, Read, perform
from raftwood.base.logs import get_logger
from raftwood.clogs.configuration import (
    CONFIGURATION_BYTES_MAX,
    VersionedConfiguration,
    accepted,
    configuration_digest,
    decode_file,
)
from raftwood.clogs.wire import CONFIGURATION_WAIT_MS_MAX, ConfigurationAnswer, ConfigurationRequest

_log = get_logger("clogs")


class FollowingSource:
    """A `ConfigurationSource`; a subclass gets configurations in `_follow`.

    `_follow` runs as a task, which the first follower starts and `close` ends.
    """

    def __init__(self, origin: str) -> None:
        """`origin` names the source in the log."""
        self._origin = origin
        self._last: VersionedConfiguration | None = None
        self._complaint = ""
        self._changed = asyncio.Event()
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def changes(self) -> AsyncIterator[VersionedConfiguration]:
        """Yields the present configuration, once there is one, then changes; ends when closed."""
        return _Changes(self)

    async def close(self) -> None:
        """Ends the iteration of all followers."""
        self._is_closed = True
        self._tell()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def next_after(
        self, known: VersionedConfiguration | None
    ) -> VersionedConfiguration | None:
        """Waits for a configuration other than `known`; returns None when the source is closed."""
        if self._task is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._follow(), name=f"follow {self._origin}")
        while not self._is_closed:
            if self._last is not None and not _is_same(known, self._last):
                return self._last
            await self._changed.wait()
        return None

    async def _follow(self) -> None:
        """Runs for ever; calls `_take` and `_complain`."""
        raise NotImplementedError

    def _take(self, found: Callable[[], VersionedConfiguration]) -> bool:
        """Takes in a configuration; wakes the followers if it differs. Whether it is good."""
        try:
            configuration = found()
        except InvalidConfiguration as error:
            if self._is_new(error.message):
                _log.error(
                    "the ring's configuration is refused, and the last good one stays",
                    origin=self._origin,
                    kept=self._kept(),
                    reason=error.message,
                )
            return False
        self._complaint = ""
        if not _is_same(self._last, configuration):
            if self._last is not None:
                _log.info(
                    "the ring's configuration has changed",
                    origin=self._origin,
                    version=configuration.version,
                    before=self._last.version,
                )
            self._last = configuration
            self._tell()
        return True

    def _complain(self, reason: str) -> None:
        """Logs that the configuration is unavailable."""
        if self._is_new(reason):
            _log.warning(
                "the ring's configuration cannot be had",
                origin=self._origin,
                kept=self._kept(),
                reason=reason,
            )

    def _is_new(self, reason: str) -> bool:
        """Whether the reason differs from the last one: it is logged once, not at every look."""
        is_new, self._complaint = reason != self._complaint, reason
        return is_new

    def _kept(self) -> str:
        return "none yet" if self._last is None else f"version {self._last.version}"

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Changes:
    """One follower's iterator; not a generator, which the follower would have to close."""

    def __init__(self, source: FollowingSource) -> None:
        self._source = source
        self._given: VersionedConfiguration | None = None

    def __aiter__(self) -> "_Changes":
        return self

    async def __anext__(self) -> VersionedConfiguration:
        self._given = await self._source.next_after(self._given)
        if self._given is None:
            raise StopAsyncIteration
        return self._given


def _is_same(known: VersionedConfiguration | None, other: VersionedConfiguration) -> bool:
    """Compares version and digest for equality, because a roll-back has a smaller version."""
    return known is not None and (known.version, known.digest) == (other.version, other.digest)


# A ring's configuration in a file that people or programs replace while clients run.

LOOK_S: Final = 1.0
"""The interval between looks at the file."""
_SETTLED_S: Final = 0.25
"""A changed file is read again after this time, and accepted if it has not changed further: half of
a file that is being written can be a valid one with half of the servers.
"""


class FileConfigurationSource(FollowingSource):
    """Follows one file: JSON, or TOML if its name ends in .toml."""

    def __init__(self, environment: Environment, path: str) -> None:
        super().__init__(f"file {path}")
        self._files = environment.files
        self._path = path
        self._counter = 0
        self._digest = ""

    async def _follow(self) -> None:
        taken: bytes | None = None
        seen: bytes | None = None
        while True:
            found = await self._read()
            if found is None or found == taken:
                seen = None
                await asyncio.sleep(LOOK_S)
            elif taken is None or found == seen:
                self._take(partial(self._versioned, found))
                taken, seen = found, None
                await asyncio.sleep(LOOK_S)
            else:
                seen = found
                await asyncio.sleep(_SETTLED_S)

    async def _read(self) -> bytes | None:
        """Reads the file, at most one byte more than allowed; None if it cannot be read."""
        try:
            # Closing a file that is not open does nothing, but makes this a writing submission,
            # which opens the file by its name. A submission that only reads would keep reading the
            # old file after a new one has replaced it.
            read = Read(self._path, 0, CONFIGURATION_BYTES_MAX + 1)
            _, data = await perform(self._files, Close(self._path), read)
        except OSError as error:
            reason = "there is no such file" if error.errno == errno.ENOENT else error.strerror
            self._complain(f"{self._path} cannot be read: {reason}; put one there")
            return None
        return bytes(data)

    def _versioned(self, data: bytes) -> VersionedConfiguration:
        configuration, version = decode_file(data, self._path)
        digest = configuration_digest(configuration)
        if version is None:
            # White space and the order of keys make no new version.
            self._counter += digest != self._digest
            version = self._counter
        self._digest = digest
        return VersionedConfiguration(version, digest, configuration)


# A ring's configuration from its receivers, by long polls: clients need no metastore.

Ask: TypeAlias = Callable[[ConfigurationRequest], Awaitable[ConfigurationAnswer]]
"""Asks any receiver once; raises `RaftwoodError` on failure."""

WAIT_MS: Final = 30_000
_ANSWER_S_MAX: Final = 10.0
"""Added to the wait: a receiver that has not answered by then is given up."""
_BACKOFF: Final = Backoff(first_ms=200, longest_ms=30_000)
_TOO_SOON_S: Final = 0.1
"""A receiver that answers without news within this time does not wait."""


class ReceiverConfigurationSource(FollowingSource):
    """Follows one ring by repeated requests to its receivers."""

    def __init__(
        self, environment: Environment, ask: Ask, ring: str, *, wait_ms: int = WAIT_MS
    ) -> None:
        super().__init__(f"receivers of ring {ring}")
        self._random = environment.random
        self._ask = ask
        self._known = ConfigurationRequest(ring, wait_ms=min(wait_ms, CONFIGURATION_WAIT_MS_MAX))

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            asked_at = loop.time()
            if await self._is_answered():
                failures = 0
                # Do not ask a receiver without pause if its answer changes all the time.
                await asyncio.sleep(max(0.0, asked_at + _TOO_SOON_S - loop.time()))
            else:
                await asyncio.sleep(_BACKOFF.delay_s(failures, self._random))
                failures += 1

    async def _is_answered(self) -> bool:
        """Whether a receiver answered, and its answer is good or came after a wait."""
        loop = asyncio.get_running_loop()
        known, asked_at = self._known, loop.time()

        def has_waited() -> bool:
            return loop.time() - asked_at >= min(_TOO_SOON_S, known.wait_ms / 1000)

        try:
            async with asyncio.timeout(known.wait_ms / 1000 + _ANSWER_S_MAX):
                answer = await self._ask(known)
        except TimeoutError:
            self._complain("no receiver answers: see that one of them can be reached")
            return False
        except RaftwoodError as error:
            self._complain(error.message)
            # After a wait for the ring's first configuration, ask again at once.
            return isinstance(error, NotFound) and has_waited()
        if not answer.text:
            revision = max(known.revision, answer.revision)
            self._known = msgspec.structs.replace(known, revision=revision)
            return has_waited()
        # A refused configuration counts as known too: else it would be sent again at once, for
        # ever.
        self._known = ConfigurationRequest(
            known.ring, answer.version, answer.digest, known.wait_ms, answer.revision
        )
        return self._take(partial(accepted, answer.version, answer.digest, answer.text))
