"""Sources of a ring's configuration for clients: a file, or the receivers by long polls.

All keep the last good configuration, and hand each change to their followers. The source on a
metastore is in `configuration_store`.
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
    """A `ConfigurationSource`; a subclass says in `_follow` where configurations come from.

    That runs as a task, begun by the first who follows and ended by `close`.
    """

    def __init__(self, origin: str) -> None:
        """`origin` says where configurations come from, for the log."""
        self._origin = origin
        self._last: VersionedConfiguration | None = None
        self._complaint = ""
        self._changed = asyncio.Event()
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def changes(self) -> AsyncIterator[VersionedConfiguration]:
        """The present one, as soon as there is one, then each that follows; ends when closed."""
        return _Changes(self)

    async def close(self) -> None:
        """Whoever follows comes to the end."""
        self._is_closed = True
        self._tell()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def next_after(
        self, known: VersionedConfiguration | None
    ) -> VersionedConfiguration | None:
        """Another one than this, once there is one; None when the source is closed."""
        if self._task is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._follow(), name=f"follow {self._origin}")
        while not self._is_closed:
            if self._last is not None and not _is_same(known, self._last):
                return self._last
            await self._changed.wait()
        return None

    async def _follow(self) -> None:
        """Call `_take` and `_complain`, for ever."""
        raise NotImplementedError

    def _take(self, found: Callable[[], VersionedConfiguration]) -> bool:
        """Whether what was found is good; whoever follows hears of it if it is another one."""
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
        """The configuration cannot be had now."""
        if self._is_new(reason):
            _log.warning(
                "the ring's configuration cannot be had",
                origin=self._origin,
                kept=self._kept(),
                reason=reason,
            )

    def _is_new(self, reason: str) -> bool:
        """Said once, not with every look."""
        is_new, self._complaint = reason != self._complaint, reason
        return is_new

    def _kept(self) -> str:
        return "none yet" if self._last is None else f"version {self._last.version}"

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class _Changes:
    """One who follows; no generator, which would have to be closed by whoever stops to."""

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
    """By version and digest, and not by which is larger: a roll-back has a smaller version."""
    return known is not None and (known.version, known.digest) == (other.version, other.digest)


# A ring's configuration in a file that people or programs replace while clients run.

LOOK_S: Final = 1.0
"""From one look at the file to the next."""
_SETTLED_S: Final = 0.25
"""What has changed is looked at again after so long, and taken if it has not changed further: half
of a file that is being written can be a good one with half of the servers."""


class FileConfigurationSource(FollowingSource):
    """Follows one file: JSON, or TOML where its name ends in .toml."""

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
        """The file's bytes, one more than are allowed at the most; None where it cannot be read."""
        try:
            # To close what is not open does nothing, but makes this a submission that writes: such
            # a one opens the file by its name. A reader of the same file again and again would be
            # given the one that had the name before.
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
            # White space and the order of keys make no other version.
            self._counter += digest != self._digest
            version = self._counter
        self._digest = digest
        return VersionedConfiguration(version, digest, configuration)


# A ring's configuration from its receivers, by long polls: clients need no metastore.

Ask: TypeAlias = Callable[[ConfigurationRequest], Awaitable[ConfigurationAnswer]]
"""Asks any receiver, once; what goes wrong is a `RaftwoodError`."""

WAIT_MS: Final = 30_000
_ANSWER_S_MAX: Final = 10.0
"""Longer than the wait: whoever does not answer then is asked no more."""
_BACKOFF: Final = Backoff(first_ms=200, longest_ms=30_000)
_TOO_SOON_S: Final = 0.1
"""Nothing new within this time is the answer of one who does not wait."""


class ReceiverConfigurationSource(FollowingSource):
    """Follows one ring by asking its receivers again and again."""

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
                # One who changes its mind all the time is not asked all the time.
                await asyncio.sleep(max(0.0, asked_at + _TOO_SOON_S - loop.time()))
            else:
                await asyncio.sleep(_BACKOFF.delay_s(failures, self._random))
                failures += 1

    async def _is_answered(self) -> bool:
        """Whether there was an answer, and one that is good or shows that the receiver waits."""
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
            # Who waited for the ring's first configuration is asked again at once.
            return isinstance(error, NotFound) and has_waited()
        if not answer.text:
            revision = max(known.revision, answer.revision)
            self._known = msgspec.structs.replace(known, revision=revision)
            return has_waited()
        # One that is refused counts as known too: else it would be sent again at once, for ever.
        self._known = ConfigurationRequest(
            known.ring, answer.version, answer.digest, known.wait_ms, answer.revision
        )
        return self._take(partial(accepted, answer.version, answer.digest, answer.text))
