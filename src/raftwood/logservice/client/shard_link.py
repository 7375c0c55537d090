"""One shard as a client reaches it: finds the leader, follows it, and asks again where it may."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from raftwood.base.errors import (
    DeadlineExceeded,
    DiskFull,
    NotFound,
    NotLeader,
    Overloaded,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.logservice.errors import ShardNotFound
from raftwood.logservice.wire import LOCATE
from raftwood.net import Connection, Method, Payload, TypedMethod
from raftwood.net.stores import Stores

ATTEMPT_MS: Final = 2_000
"""After so long without an answer another store is asked, and twice as long each time after that:
an attempt has to outlast a slow commit."""
ATTEMPT_MS_MAX: Final = 32_000
PAUSE_FIRST_S, PAUSE_LONGEST_S = 0.005, 0.1
LEARN_EVERY_S: Final = 10.0
"""So often a store that is asked tells also which others there are."""
MISSING_MAX: Final = 20
"""So often a shard may be unknown, as one is that was just made, before the caller is told."""


def attempt_ms(silences: int) -> int:
    """How long the next attempt may take after so many in a row without an answer."""
    return min(ATTEMPT_MS_MAX, ATTEMPT_MS << min(silences, 10))


Request = TypeVar("Request")
Response = TypeVar("Response")


class ShardLink:
    """The connections are shared with others; closing them is their owner's."""

    def __init__(self, stores: Stores, shard: int) -> None:
        self.stores = stores
        self.shard = shard
        self._loop = asyncio.get_running_loop()
        self._locating: asyncio.Task[None] | None = None
        self._learn_at = self._loop.time() + LEARN_EVERY_S

    def guess(self) -> int:
        """The store that leads, as far as is known; else some store."""
        return self.stores.guess(self.shard)

    def call(
        self, method: Method, request: Buffer | Sequence[Buffer], *, store: int, timeout_ms: int
    ) -> "asyncio.Future[Payload]":
        """One attempt; raises at once where there is no connection."""
        answer = self.stores.channel(store).call(method, request, timeout_ms)
        now = self._loop.time()
        if now >= self._learn_at:
            # All stores may be replaced one by one while the leader stays where it is.
            self._learn_at = now + LEARN_EVERY_S
            self._locate(store)
        return answer

    async def ask(
        self, method: TypedMethod[Request, Response], request: Request, *, timeout_ms: int
    ) -> Response:
        """Ask the leader until it answers; for what may be asked twice."""
        answer = await self.ask_raw(method, method.encode(request), timeout_ms=timeout_ms)
        return method.decode_response(answer)

    async def ask_raw(
        self,
        method: Method,
        request: Buffer | Sequence[Buffer],
        *,
        timeout_ms: int,
        wait_ms: int = 0,
        store: Callable[[], int] | None = None,
        repeated: Callable[[], Sequence[Buffer]] | None = None,
    ) -> Payload:
        """As `ask`, with bytes; `wait_ms` is how long the server itself may wait.

        `repeated` makes the request of the second attempt and later, where it is another one.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        pause_s = PAUSE_FIRST_S
        missing = silences = 0
        reason: RaftwoodError | None = None
        while True:
            remaining_ms = int((deadline - self._loop.time()) * 1000)
            if remaining_ms <= 0:
                raise self.silence(reason)
            asked = (store or self.guess)()
            try:
                return await self.call(
                    method,
                    request,
                    store=asked,
                    timeout_ms=min(remaining_ms, attempt_ms(silences) + wait_ms),
                )
            except ShardNotFound:
                missing += 1
                if missing >= MISSING_MAX:
                    raise
                self.stores.try_another(self.shard, asked=asked)
            except (Unavailable, DeadlineExceeded, NotFound) as error:
                self.note(error, asked=asked)
                reason = error
                silences += isinstance(error, DeadlineExceeded)
            if repeated is not None:
                request = repeated()
            await asyncio.sleep(min(pause_s, max(0.0, deadline - self._loop.time())))
            pause_s = min(PAUSE_LONGEST_S, pause_s * 2)

    def silence(self, reason: RaftwoodError | None) -> DeadlineExceeded:
        """Time is over; `reason` is what came of the last attempt."""
        said = f" ({reason.message})" if reason is not None else ""
        return DeadlineExceeded(
            f"shard {self.shard} did not answer in time{said}: see that a majority of its stores "
            "runs"
        )

    def note(self, error: RaftwoodError, *, asked: int) -> None:
        """An attempt failed: whom to ask next."""
        if isinstance(error, NotLeader):
            is_known = error.leader in self.stores.known()
            # One that just died leads on in the memory of the others, for a moment.
            is_there = is_known and self.stores.channel(error.leader).is_connected
            leader = error.leader if is_there else 0
            self.stores.heard_of_leader(self.shard, leader, asked=asked)
            if not is_known:
                self._locate(asked)
        elif not isinstance(error, Overloaded | DiskFull):
            self.stores.try_another(self.shard, asked=asked)

    def _locate(self, asked: int) -> None:
        """The leader is a store that this client has not heard of, or nobody knows it."""
        if self._locating is None or self._locating.done():
            self._locating = self._loop.create_task(self._learn(asked))

    async def _learn(self, asked: int) -> None:
        try:
            location = await self.stores.channel(asked).ask(LOCATE, self.shard, ATTEMPT_MS)
        except RaftwoodError:
            return
        self.learn(location.addresses)
        if location.leader in self.stores.known():
            self.stores.heard_of_leader(self.shard, location.leader, asked=self.guess())

    def learn(self, addresses: dict[int, str]) -> None:
        """Of stores that are not known yet: an address that was given counts more."""
        known = self.stores.known()
        self.stores.learn({store: each for store, each in addresses.items() if store not in known})

    async def close(self) -> None:
        if self._locating is not None:
            self._locating.cancel()
            await asyncio.gather(self._locating, return_exceptions=True)


async def ask_store_addresses(connection: Connection, timeout_ms: int) -> dict[int, str]:
    """Ask a store for the addresses of those that keep HAKeeper."""
    return (await connection.ask(LOCATE, 0, timeout_ms)).addresses
