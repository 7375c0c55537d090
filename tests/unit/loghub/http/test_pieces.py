"""The front's pieces: hosts, encodings, keys that are sent as they are, and bounds on bodies."""

import asyncio
import base64
import gzip
import zlib
from collections.abc import MutableMapping
from typing import Any

import pytest
import zstandard

from raftwood.base.errors import (
    ConnectionLost,
    InvalidInput,
    Overloaded,
    RaftwoodError,
    Unauthenticated,
)
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.loghub.server.content_encoding import inflated, unpacked
from raftwood.loghub.server.http import (
    ByteBudget,
    HttpRequest,
    key_of_authorization,
    project_of_host,
)
from tests.kits.running import run

KEY = AccessKey(id="me", secret="höher", roles={"*": AccessRole.ADMIN}, created_s=0)


@pytest.mark.parametrize(
    ("host", "project"),
    [
        ("p.sls.test", "p"),
        ("p.sls.test:8080", "p"),
        ("p.127.0.0.1", "p"),
        ("p.127.0.0.1:80", "p"),
        ("127.0.0.1", ""),
        ("127.0.0.1:80", ""),
        ("[::1]:80", ""),
        ("[", ""),
        ("localhost", ""),
        ("p.localhost:80", "p"),
        ("", ""),
        (":80", ""),
        (".", ""),
        ("gateway.test", ""),
        ("GATEWAY.test:80", ""),
        ("p.gateway.test", "p"),
        ("p.q.gateway.test", "p.q"),
    ],
)
def test_the_host_names_the_project(host: str, project: str) -> None:
    assert project_of_host(host, ("gateway.test",)) == project


BODY = b"some text, some text, some text" * 100


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("", BODY),
        ("identity", BODY),
        ("gzip", gzip.compress(BODY, mtime=0)),
        ("X-GZIP ", gzip.compress(BODY[:50], mtime=0) + gzip.compress(BODY[50:], mtime=0)),
        ("deflate", zlib.compress(BODY)),
        ("zstd", zstandard.compress(BODY)),
        ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(BODY)),
    ],
)
def test_a_body_is_unpacked_up_to_its_bound(encoding: str, packed: bytes) -> None:
    assert unpacked(packed, encoding, bytes_max=len(BODY)) == BODY
    with pytest.raises(BatchTooLarge):
        unpacked(packed, encoding, bytes_max=len(BODY) - 1)


def test_a_body_of_many_members_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib copies all that it was given behind a member: given all, that grows with its square."""
    given = 0

    class Unpacker:
        def __init__(self, window_bits: int) -> None:
            self._unpacker = decompressobj(window_bits)

        def decompress(self, data: bytes, max_length: int) -> bytes:
            nonlocal given
            given += len(data)
            return self._unpacker.decompress(data, max_length)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._unpacker, name)

    decompressobj = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", Unpacker)
    count = 5_000
    packed = gzip.compress(b"ab", mtime=0) * count
    assert unpacked(packed, "gzip", bytes_max=1 << 20) == b"ab" * count
    assert given < count * 20_000


def test_a_body_is_unpacked_in_parts_of_bounded_work() -> None:
    parts = list(inflated(gzip.compress(bytes(8 << 20), mtime=0), bytes_max=8 << 20))
    assert b"".join(parts) == bytes(8 << 20)
    assert max(map(len, parts)) <= 2 << 20
    packed = gzip.compress(b"", mtime=0) * 1_000
    assert len(list(inflated(packed, bytes_max=1 << 20))) > 10


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", b""),
        ("gzip", BODY),
        ("gzip", gzip.compress(BODY, mtime=0)[:-5]),
        ("gzip", gzip.compress(BODY, mtime=0) + b"more"),
        ("deflate", gzip.compress(BODY, mtime=0)),
        ("zstd", b""),
        ("zstd", BODY),
        ("zstd", zstandard.compress(BODY)[:-5]),
        ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(BODY)[:-5]),
        ("brotli", BODY),
        ("gzip, gzip", BODY),
    ],
)
def test_a_body_that_is_broken_or_packed_in_another_way_is_refused(
    encoding: str, packed: bytes
) -> None:
    with pytest.raises(InvalidInput):
        unpacked(packed, encoding, bytes_max=1 << 20)


def request_of(
    headers: dict[bytes, bytes] | None = None,
    *parts: bytes,
    budget: ByteBudget | None = None,
    query: bytes = b"",
) -> HttpRequest:
    messages = [
        {"type": "http.request", "body": part, "more_body": place < len(parts) - 1}
        for place, part in enumerate(parts)
    ]

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.sleep(0)
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    scope = {"method": "POST", "path": "/", "query_string": query}
    return HttpRequest(
        scope, receive, budget or ByteBudget(1 << 20), id="1", project="p", headers=headers or {}
    )


def basic(text: str) -> bytes:
    return b"Basic " + base64.b64encode(text.encode())


@pytest.mark.parametrize("header", [basic("me:höher"), "bearer  me:höher".encode("latin-1")])
def test_a_key_may_be_sent_with_its_secret(header: bytes) -> None:
    request = request_of({b"authorization": header})
    assert key_of_authorization(request, {"me": KEY}.get) is KEY


@pytest.mark.parametrize(
    "header",
    [basic("me"), basic("me:"), basic("me:höhe"), basic("you:höher"), b"Bearer me:wrong"],
)
def test_a_wrong_secret_is_refused(header: bytes) -> None:
    with pytest.raises(Unauthenticated, match="is wrong"):
        key_of_authorization(request_of({b"authorization": header}), {"me": KEY}.get)


@pytest.mark.parametrize(
    "header",
    [b"", b"Basic", b"Basic !!!", b"Basic /w==", basic(":"), b"Digest me:h\xf6her"],
)
def test_a_request_without_a_key_is_refused(header: bytes) -> None:
    with pytest.raises(Unauthenticated, match="has no access key"):
        key_of_authorization(request_of({b"authorization": header}), {"me": KEY}.get)


def body_of(request: HttpRequest, bytes_max: int = 100) -> bytes:
    return run(request.body(bytes_max=bytes_max))


def test_a_body_is_read_whole_and_given_back_to_the_budget() -> None:
    budget = ByteBudget(100)
    for parts in ((b"abc",), (b"a", b"", b"bc"), (b"ab", b"c", b"")):
        for headers in ({}, {b"content-length": b"3"}):
            request = request_of(headers, *parts, budget=budget)
            assert body_of(request) == b"abc"
            assert budget.bytes == 3
            request.reserve(50)
            assert budget.bytes == 53
            request.release()
            assert budget.bytes == 0


@pytest.mark.parametrize(
    ("headers", "parts", "error"),
    [
        ({b"content-length": b"101"}, (), BatchTooLarge),
        ({}, (b"x" * 101,), BatchTooLarge),
        ({}, (b"x" * 60, b"x" * 60), BatchTooLarge),
        ({b"content-length": b"91"}, (), Overloaded),
        ({}, (b"x" * 60, b"x" * 31), Overloaded),
        ({}, (), ConnectionLost),
    ],
)
def test_a_body_beyond_its_bounds_is_refused(
    headers: dict[bytes, bytes], parts: tuple[bytes, ...], error: type[RaftwoodError]
) -> None:
    budget = ByteBudget(100)
    budget.take(10)
    request = request_of(headers, *parts, budget=budget)
    with pytest.raises(error):
        body_of(request)
    request.release()
    assert budget.bytes == 10


@pytest.mark.parametrize("query", [b"a=1&a=2", b"a=%ff", b"\xff", b"&".join([b"a=1"] * 65)])
def test_a_query_that_can_be_read_in_two_ways_is_refused(query: bytes) -> None:
    with pytest.raises(InvalidInput):
        print(request_of(query=query).parameters)


def test_parameters_are_decoded() -> None:
    request = request_of(query=b"a=%C3%B6+%26&b=&c")
    assert request.parameters == {"a": "ö &", "b": "", "c": ""}
