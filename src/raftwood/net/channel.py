"""A channel: a connection to one server, reconnected until the channel is closed.

It never sends a request twice. A call fails when its connection does, and the caller decides
whether to repeat it. Between attempts the channel waits, longer each time up to a bound, with
jitter, so that many clients do not come back in step.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeAlias, TypeVar

from raftwood.base.backoff import Backoff
from raftwood.base.errors import RaftwoodError, ShuttingDown, Unavailable
from raftwood.base.files import Buffer
from raftwood.net.client import Connection, Stream
from raftwood.net.frames import Payload
from raftwood.net.methods import Method, TypedMethod

Request = TypeVar("Request")
Response = TypeVar("Response")

Connector: TypeAlias = Callable[[], Awaitable[Connection]]
"""Makes one attempt: usually `connect` with its arguments bound."""


class Channel:
    """Keeps a connection to one server; use it as a context manager."""

    def __init__(
        self,
        connector: Connector,
        random_source: random.Random,
        backoff: Backoff | None = None,
        *,
        on_change: Callable[[bool], None] | None = None,
        on_gone: Callable[[], None] | None = None,
    ) -> None:
        """`on_change` receives True at each connect and False at each loss, but not at `close`.

        `on_gone` is called once after each loss if no process listens there any more: it has ended.
        Neither may raise: the task that reconnects calls them.
        """
        self._connector = connector
        self._random = random_source
        self._backoff = backoff or Backoff()
        self._on_change = on_change
        self._on_gone = on_gone
        self._connection: Connection | None = None
        self._draining: list[Connection] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.last_error: RaftwoodError | None = None
        """Why the last attempt failed; None while connected."""

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_usable

    async def connected(self, timeout_ms: int, *, retries: bool = True) -> Connection:
        """Returns the usable connection, waiting for one if need be; raises why there is none.

        Without `retries`, waits only until an attempt has failed.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    connection = self._connection
                    if connection is not None and connection.is_usable:
                        return connection
                    if self._is_closed:
                        raise ShuttingDown("the channel is closed")
                    if not retries and self.last_error is not None:
                        raise self._reason()
                    await self._changed.wait()
        except TimeoutError as error:
            raise self._reason() from error

    def call(
        self, method: Method, payload: Buffer | Sequence[Buffer], timeout_ms: int
    ) -> "asyncio.Future[Payload]":
        """Like `Connection.call`; raises Unavailable at once if there is no connection."""
        return self._usable().call(method, payload, timeout_ms)

    async def ask(
        self, method: TypedMethod[Request, Response], request: Request, timeout_ms: int
    ) -> Response:
        return await self._usable().ask(method, request, timeout_ms)

    def stream(
        self, method: Method, payload: Buffer = b"", *, timeout_ms: int | None = None
    ) -> Stream:
        return self._usable().stream(method, payload, timeout_ms=timeout_ms)

    def send(self, method: Method, payload: Buffer | Sequence[Buffer]) -> bool:
        """Like `Connection.send`; returns False if there is no connection."""
        connection = self._connection
        return connection is not None and connection.send(method, payload)

    def _usable(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_usable:
            raise self._reason()
        return connection

    def _reason(self) -> RaftwoodError:
        if self.last_error is None:
            return Unavailable("there is no connection to the server yet: try again")
        return type(self.last_error)(self.last_error.message)

    def start(self) -> None:
        """Starts to connect."""
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    async def close(self) -> None:
        """Closes the connection and stops reconnecting; calls under way fail."""
        self._is_closed = True
        self._wake()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for connection in [*self._draining, self._connection]:
            if connection is not None:
                await connection.close()
        self._connection = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _keep_connected(self) -> None:
        failures = 0
        is_lost = False
        while True:
            try:
                connection = await self._connector()
            except RaftwoodError as error:
                self.last_error = error
                self._wake()
                is_gone = is_lost and isinstance(error.__cause__, ConnectionRefusedError)
                if is_gone and self._on_gone is not None:
                    is_lost = False
                    self._on_gone()
            else:
                began = asyncio.get_running_loop().time()
                self.last_error = None
                self._connection = connection
                self._wake()
                self._tell(is_connected=True)
                await connection.wait_unusable()
                self._drain(connection)
                is_lost = True
                self._tell(is_connected=False)
                # A connection that lasted resets the count of failures; one that is accepted and
                # dropped at once must not be dialled in a tight loop.
                stood_s = asyncio.get_running_loop().time() - began
                if stood_s >= self._backoff.longest_ms / 1000:
                    failures = 0
            await asyncio.sleep(self._backoff.delay_s(failures, self._random))
            failures += 1

    def _drain(self, connection: Connection) -> None:
        """After GOAWAY, lets the connection's calls finish beside the next connection."""
        self._connection = None
        self.last_error = connection.why_unusable
        self._draining = [old for old in self._draining if not old.is_closed]
        if not connection.is_closed:
            self._draining.append(connection)

    def _tell(self, *, is_connected: bool) -> None:
        if self._on_change is not None:
            self._on_change(is_connected)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
