"""A ring's configuration from its receivers, by long polls: clients need no metastore."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.clogs.configuration.source import FollowingSource
from raftwood.clogs.configuration.text import accepted
from raftwood.clogs.wire import (
    CONFIGURATION_WAIT_MS_MAX,
    ConfigurationAnswer,
    ConfigurationRequest,
)
from raftwood.net import Backoff

Ask: TypeAlias = Callable[[ConfigurationRequest], Awaitable[ConfigurationAnswer]]
"""Asks any receiver, once; what goes wrong is a `RaftwoodError`."""

WAIT_MS: Final = 30_000
_ANSWER_S_MAX: Final = 10.0
"""Longer than the wait: whoever does not answer then is asked no more."""
_BACKOFF: Final = Backoff(first_ms=200, longest_ms=30_000)
_TOO_SOON_S: Final = 0.1
"""Nothing new within this time is the answer of one who does not wait."""


class ServerSource(FollowingSource):
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
