"""A client's link to one shard: finds and follows the leader; repeats requests where allowed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from raftwood.base.errors import DeadlineExceeded, NotLeader, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.logservice.errors import LogShardNotFound
from raftwood.logservice.wire import LOCATE
from raftwood.net import Connection, Method, Payload, TypedMethod
from raftwood.net.stores import ATTEMPT_MS, Stores, silence

LEARN_EVERY_S: Final = 10.0
"""How often the link asks a store for the addresses of the others."""
MISSING_MAX: Final = 20
"""Attempts that may find the shard unknown, as a new one is at first, before the call fails."""


Request = TypeVar("Request")
Response = TypeVar("Response")


class ShardLink:
    """Requests to one shard over shared connections, which their owner closes."""

    def __init__(self, stores: Stores, shard: int) -> None:
        self.stores = stores
        self.shard = shard
        self._loop = asyncio.get_running_loop()
        self._locating: asyncio.Task[None] | None = None
        self._learn_at = self._loop.time() + LEARN_EVERY_S

    def guess(self) -> int:
        """The store that leads, as far as the link knows; else any store."""
        return self.stores.guess(self.shard)

    def call(
        self, method: Method, request: Buffer | Sequence[Buffer], *, store: int, timeout_ms: int
    ) -> "asyncio.Future[Payload]":
        """Makes one attempt; raises at once if there is no connection."""
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
        """Asks the leader until it answers; only for requests that may be repeated."""
        answer = await self.ask_raw(method, method.encode(request), timeout_ms=timeout_ms)
        return method.decode_response(answer)

    async def ask_raw(
        self,
        method: Method,
        request: Buffer | Sequence[Buffer],
        *,
        timeout_ms: int,
        wait_ms: int = 0,
        repeated: Callable[[], Sequence[Buffer]] | None = None,
    ) -> Payload:
        """Like `ask`, with bytes; `wait_ms` is how long the server itself may wait.

        `repeated` makes the request for later attempts, if it differs from the first.
        """
        missing = 0

        def attempt(store: int, attempt_ms: int) -> Awaitable[Payload]:
            return self.call(method, request, store=store, timeout_ms=attempt_ms)

        def failed(error: RaftwoodError, asked: int) -> None:
            nonlocal missing, request
            missing += isinstance(error, LogShardNotFound)
            if missing >= MISSING_MAX:
                raise error
            self.note(error, asked=asked)
            if repeated is not None:
                request = repeated()

        return await self.stores.ask_until_answered(
            self.shard,
            attempt,
            failed,
            what=f"shard {self.shard}",
            deadline=self._loop.time() + timeout_ms / 1000,
            wait_ms=wait_ms,
        )

    def silence(self, reason: RaftwoodError | None) -> DeadlineExceeded:
        """The timeout error; `reason` is the last attempt's error."""
        return silence(f"shard {self.shard}", reason)

    def note(self, error: RaftwoodError, *, asked: int) -> None:
        """Notes a failed attempt, which decides the store to ask next."""
        self.stores.note_failure(self.shard, error, asked=asked)
        if isinstance(error, NotLeader) and error.leader not in self.stores.known():
            self._locate(asked)

    def _locate(self, asked: int) -> None:
        """Asks a store where the shard is: the leader is unknown, or not among the known stores."""
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
        """Adds addresses of unknown stores; addresses that were given are kept."""
        known = self.stores.known()
        self.stores.learn({store: each for store, each in addresses.items() if store not in known})

    async def close(self) -> None:
        if self._locating is not None:
            self._locating.cancel()
            await asyncio.gather(self._locating, return_exceptions=True)


async def ask_store_addresses(connection: Connection, timeout_ms: int) -> dict[int, str]:
    """Asks a store for the addresses of HAKeeper's stores."""
    return (await connection.ask(LOCATE, 0, timeout_ms)).addresses
