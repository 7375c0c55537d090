"""Methods, the calls of them, and the table of their handlers.

A method is a small number on the wire with a name for people. Its payloads are raw bytes, or
msgspec structs through `TypedMethod`. A `Call` is one request under way as its handler sees it. A
`Service` says which handler serves which method, in one of four ways:

- `fast`: a plain function called from the receive callback, with a `Call` to answer now or later.
  The hot path: it costs no task, so it must not block.
- `task`: a coroutine; its result is the response, in one buffer or several.
- `stream`: an async iterator; each item goes out as the client's credit allows.
- `one_way`: a plain function called from the receive callback, with the sender of the message. It
is never answered: if the handler cannot take the message, the connection is closed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from raftwood.base.errors import InvalidInput, InvariantViolated, ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.names import checked_name
from raftwood.net.connection import NEVER
from raftwood.net.frames import HEADER_BYTES, Payload
from raftwood.net.identity import Identity

if TYPE_CHECKING:
    from raftwood.net.server import ServerConnection


class Call:
    """One request under way. Answer it once; answers after the first, or too late, do nothing."""

    is_stream = False
    __slots__ = ("_session", "deadline", "is_urgent", "peer", "request_id", "size", "task")

    def __init__(
        self,
        session: "ServerConnection",
        peer: Identity,
        request_id: int,
        deadline: float,
        size: int,
    ) -> None:
        self._session: ServerConnection | None = session
        self.peer = peer
        """The client's identity, proved by the handshake."""
        self.request_id = request_id
        self.deadline = deadline
        """In the loop's time; infinity if the client set none."""
        self.size = size
        self.is_urgent = False
        """Whether it counts against the bound on urgent requests."""
        self.task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the client still waits: not answered, cancelled, expired or disconnected."""
        return self._session is not None

    @property
    def is_congested(self) -> bool:
        """Whether the client lags in taking earlier answers."""
        return self._session is not None and self._session.is_congested

    def remaining_ms(self) -> int | None:
        """The time until the deadline; None if the client set none."""
        if self.deadline == NEVER:
            return None
        return max(0, int((self.deadline - asyncio.get_running_loop().time()) * 1000))

    def reply(self, payload: Buffer | Sequence[Buffer] = b"") -> None:
        """Answers with one buffer or several; those above 8 kB are sent without a copy and must not
        change any more.
        """
        session = self._session
        if session is not None:
            self._session = None
            session.answer(self, payload)

    def fail(self, error: RaftwoodError) -> None:
        """Answers with an error: only its code, message and `wire_fields` travel."""
        session = self._session
        if session is not None:
            self._session = None
            session.refuse(self, error)

    def close(self) -> None:
        """Drops the call: the client cancelled, the deadline passed or the connection ended."""
        self._session = None
        if self.task is not None:
            self.task.cancel()


class StreamCall(Call):
    """A request with a streamed answer; sends no more than the client has granted credit for."""

    is_stream = True
    __slots__ = ("_waiter", "credit")

    def __init__(
        self,
        session: "ServerConnection",
        peer: Identity,
        request_id: int,
        deadline: float,
        size: int,
    ) -> None:
        super().__init__(session, peer, request_id, deadline, size)
        self.credit = 0
        self._waiter: asyncio.Future[None] | None = None

    async def send(self, item: Buffer) -> None:
        """Sends one item as soon as the client has room and the connection is not congested."""
        while self._session is not None and (self.credit <= 0 or self._session.is_congested):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._session is not None:
            # The header counts, so that a stream of empty items is bounded too.
            self.credit -= HEADER_BYTES + self._session.send_item(self, item)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


METHOD_NUMBER_MAX = (1 << 16) - 1

Request = TypeVar("Request")
Response = TypeVar("Response")

FastHandler: TypeAlias = Callable[[Call, Payload], None]
TaskHandler: TypeAlias = Callable[[Call, Payload], Coroutine[Any, Any, Buffer | Sequence[Buffer]]]
StreamHandler: TypeAlias = Callable[[Call, Payload], AsyncIterator[Buffer]]
OneWayHandler: TypeAlias = Callable[[Identity, Payload], None]


class Method:
    """A method with raw payloads; only `roles` may call it, or every peer if None.

    An `urgent` method renews a lease or is a heartbeat. The client sends it, and the server begins
    it, before waiting requests, within the bounds of `listeners` and `limits`. Its requests must be
    small and rare.
    """

    __slots__ = ("is_urgent", "name", "number", "roles")

    def __init__(
        self,
        number: int,
        name: str,
        *,
        roles: tuple[str, ...] | None = None,
        urgent: bool = False,
    ) -> None:
        if not 0 <= number <= METHOD_NUMBER_MAX:
            raise InvariantViolated(f"method number {number} of {name} does not fit 16 bits")
        self.number = int(number)
        self.name = checked_name("method", name)
        self.roles = roles
        self.is_urgent = urgent

    def __repr__(self) -> str:
        return f"Method({self.number}, {self.name!r})"


class TypedMethod(Method, Generic[Request, Response]):
    """A method whose payloads are msgspec types, as MessagePack."""

    __slots__ = ("_decode_request", "_decode_response", "_encode")

    def __init__(
        self,
        number: int,
        name: str,
        *,
        request: type[Request],
        response: type[Response],
        roles: tuple[str, ...] | None = None,
        urgent: bool = False,
    ) -> None:
        super().__init__(number, name, roles=roles, urgent=urgent)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_request = msgspec.msgpack.Decoder(request).decode
        self._decode_response = msgspec.msgpack.Decoder(response).decode

    def encode(self, value: Request | Response) -> bytes:
        return self._encode(value)

    def decode_request(self, payload: Payload) -> Request:
        try:
            return self._decode_request(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidInput(f"the request of {self.name} cannot be read: {error}") from error

    def decode_response(self, payload: Payload) -> Response:
        try:
            return self._decode_response(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"the response of {self.name} cannot be read: {error}") from error


class HandlerMode(Enum):
    """How an entry's handler is run."""

    FAST = 1
    TASK = 2
    STREAM = 3
    DENIED = 4
    ONE_WAY = 5


class HandlerEntry:
    """One row of a service's table, as a session looks it up."""

    __slots__ = ("handler", "method", "mode")

    def __init__(
        self, method: Method, mode: HandlerMode, handler: Callable[[Any, Payload], Any]
    ) -> None:
        self.method = method
        self.mode = mode
        self.handler = handler


class Service:
    """The handlers of one server."""

    def __init__(self) -> None:
        self._entries: dict[int, HandlerEntry] = {}

    def fast(self, method: Method, handler: FastHandler) -> None:
        self._add(HandlerEntry(method, HandlerMode.FAST, handler))

    def task(self, method: Method, handler: TaskHandler) -> None:
        self._add(HandlerEntry(method, HandlerMode.TASK, handler))

    def stream(self, method: Method, handler: StreamHandler) -> None:
        self._add(HandlerEntry(method, HandlerMode.STREAM, handler))

    def one_way(self, method: Method, handler: OneWayHandler) -> None:
        self._add(HandlerEntry(method, HandlerMode.ONE_WAY, handler))

    def typed(
        self,
        method: TypedMethod[Request, Response],
        handler: Callable[[Call, Request], Coroutine[Any, Any, Response]],
    ) -> None:
        """Registers a coroutine that takes and returns structs."""

        async def run(call: Call, payload: Payload) -> bytes:
            return method.encode(await handler(call, method.decode_request(payload)))

        self.task(method, run)

    def _add(self, entry: HandlerEntry) -> None:
        number = entry.method.number
        if number in self._entries:
            raise InvariantViolated(
                f"{entry.method} and {self._entries[number].method} have the same number"
            )
        self._entries[number] = entry

    def entries_for(self, role: str) -> Mapping[int, HandlerEntry]:
        """The table for peers of one role, so that no request needs a permission check."""
        return {
            number: entry
            if entry.method.roles is None or role in entry.method.roles
            else HandlerEntry(entry.method, HandlerMode.DENIED, entry.handler)
            for number, entry in self._entries.items()
        }
