"""A request as its route sees it: parsed when asked for, its body read within bounds."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qsl

from raftwood.base.errors import ConnectionLost, InvalidInput, Overloaded
from raftwood.loghub.errors import BatchTooLarge, InvalidParameter
from raftwood.loghub.model import AccessKey

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
PARAMETERS_MAX: Final = 64


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
        "_parameters",
        "_receive",
        "_taken",
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
        self.project = project
        """From the Host header; empty where it names none."""
        self.key: AccessKey | None = None
        self._receive = receive
        self._budget = budget
        self._taken = 0
        self._parameters: dict[str, str] | None = None

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
            size = int(declared)  # The parser let only digits pass.
            if size > bytes_max:
                raise _too_large(size, bytes_max)
            self._take(size)
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            return self._checked(body, bytes_max)
        parts = [self._part(message, bytes_max)]
        size = len(parts[0])
        while message.get("more_body", False):
            message = await self._receive()
            parts.append(self._part(message, bytes_max))
            size += len(parts[-1])
            if size > bytes_max:
                raise _too_large(size, bytes_max)
            if size > self._taken:
                self._take(size - self._taken)
        return b"".join(parts)

    def _part(self, message: MutableMapping[str, Any], bytes_max: int) -> bytes:
        if message["type"] != "http.request":
            raise ConnectionLost("the client went away before its request was whole")
        return self._checked(message.get("body", b""), bytes_max)

    def _checked(self, part: bytes, bytes_max: int) -> bytes:
        if len(part) > bytes_max:
            raise _too_large(len(part), bytes_max)
        if len(part) > self._taken:
            self._take(len(part) - self._taken)
        return part

    def reserve(self, size: int) -> None:
        """Account for what the body is going to be unpacked to, before it is."""
        self._take(size)

    def _take(self, size: int) -> None:
        self._budget.take(size)
        self._taken += size

    def release(self) -> None:
        """The request is answered."""
        self._budget.give_back(self._taken)
        self._taken = 0


def _too_large(size: int, bytes_max: int) -> BatchTooLarge:
    return BatchTooLarge(
        f"the body has {size} bytes or more, {bytes_max} are allowed: send smaller batches"
    )


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
