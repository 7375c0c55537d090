"""A request as its route sees it: parsed when asked for, its body read within bounds."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from raftwood.base.errors import ConnectionLost, InvalidInput, Overloaded
from raftwood.loghub.errors import BatchTooLarge, InvalidParameter
from raftwood.loghub.model import AccessKey
from raftwood.net.http_listener import AUTHENTICATED

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
PARAMETERS_MAX: Final = 64
_Result = TypeVar("_Result")


def _nobody_asks() -> None:
    pass


class ByteBudget:
    """How much the bodies of all requests under way may take together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0

    def take(self, size: int) -> None:
        if self.bytes + size > self.bytes_max:
            raise Overloaded(
                f"the gateway has no room for {size} more bytes of requests: try again in a moment"
            )
        self.bytes += size

    def give_back(self, size: int) -> None:
        self.bytes -= size


class Request:
    """One request; `key` is who sent it, once that was shown."""

    __slots__ = (
        "_budget",
        "_has_more",
        "_parameters",
        "_receive",
        "_taken",
        "authenticated",
        "client",
        "headers",
        "id",
        "key",
        "method",
        "path",
        "project",
        "query_string",
    )

    def __init__(
        self,
        scope: MutableMapping[str, Any],
        receive: Receive,
        budget: ByteBudget,
        *,
        id: str,  # noqa: A002
        project: str,
        headers: dict[bytes, bytes],
    ) -> None:
        self.id = id
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query_string: bytes = scope["query_string"]
        self.headers = headers
        """By name in lower case; of a header that came twice the last one."""
        client = scope.get("client")
        self.client: str = client[0] if client else ""
        """The address of who connected, be it a proxy."""
        self.project = project
        """From the Host header; empty where it names none."""
        self.key: AccessKey | None = None
        self._receive = receive
        self._budget = budget
        self._taken = 0
        self._has_more = True
        self._parameters: dict[str, str] | None = None
        self.authenticated: Callable[[], None] = scope.get("extensions", {}).get(
            AUTHENTICATED, _nobody_asks
        )
        """To be called once it is known who sends it."""

    @property
    def parameters(self) -> dict[str, str]:
        """Of the query, decoded; `InvalidParameter` where one is given twice."""
        if self._parameters is None:
            self._parameters = _parsed(self.query_string) if self.query_string else {}
        return self._parameters

    def header(self, name: bytes) -> str:
        """A header's text, empty where there is none."""
        return self.headers.get(name, b"").decode("latin-1")

    async def body(self, *, bytes_max: int) -> bytes:
        """The body as it came; `BatchTooLarge` before anything above the bound is held."""
        declared = self.headers.get(b"content-length")
        if declared is not None:
            # The parser let only a number pass.
            self._check(int(declared), bytes_max)
        parts: list[bytes] = []
        size = 0
        while self._has_more:
            part = await self._part()
            size += len(part)
            self._check(size, bytes_max)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check(self, size: int, bytes_max: int) -> None:
        if size > bytes_max:
            raise BatchTooLarge(
                f"the body has {size} bytes or more, {bytes_max} are allowed: send smaller batches"
            )
        if size > self._taken:
            self.reserve(size - self._taken)

    @property
    def has_unread_body(self) -> bool:
        headers = self.headers
        is_empty = b"transfer-encoding" not in headers and not int(
            headers.get(b"content-length", 0)
        )
        return self._has_more and not is_empty

    async def drop_body(self, *, bytes_max: int) -> None:
        """Read what was not read, and keep none of it: a client that still sends when it is refused
        would else find the connection cut, and not read why.
        """
        headers = self.headers
        if b"expect" in headers:
            return
        left = bytes_max if b"transfer-encoding" in headers else 0
        left = int(headers.get(b"content-length", left))
        if left > bytes_max:
            return
        while left > 0 and self._has_more:
            left -= len(await self._part())

    async def unless_gone(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """What comes of long work, which ends with `ConnectionLost` once the client went away."""
        working = asyncio.create_task(work)
        leaving = asyncio.create_task(self._left())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise ConnectionLost("the client went away before it was answered")
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _part(self) -> bytes:
        message = await self._receive()
        self._has_more = message.get("more_body", False)
        if message["type"] != "http.request":
            raise ConnectionLost("the client went away before its request was whole")
        part: bytes = message.get("body", b"")
        return part

    def reserve(self, size: int) -> None:
        """Account for what a body is unpacked to, or an answer takes until it is sent."""
        self._budget.take(size)
        self._taken += size

    def release(self) -> None:
        """The request is answered."""
        self._budget.give_back(self._taken)
        self._taken = 0


def _parsed(query: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=PARAMETERS_MAX,
        )
    except ValueError as error:
        raise InvalidParameter(
            f"the query cannot be read: give at most {PARAMETERS_MAX} parameters, in UTF-8"
        ) from error
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidInput("a parameter is given twice: give each once")
    return found
