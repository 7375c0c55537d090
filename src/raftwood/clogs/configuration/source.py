"""What all sources of configurations have in common: the last good one, and those who follow it."""

import asyncio
from collections.abc import AsyncIterator, Callable

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.logs import get_logger
from raftwood.clogs.model import VersionedConfiguration

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
