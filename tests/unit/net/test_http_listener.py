"""The HTTP listener: spoken to as a proxy, and by those who want too much of it."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from tests.kits.running import SkippingLoop, run
from tests.kits.turns import counting

from raftwood.net import http_listener
from raftwood.net.http_listener import HttpLimits, HttpListener
from raftwood.net.tls import ServerTls, TlsFiles


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers what it was asked for, and the size of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        size, more = size + len(message["body"]), message["more_body"]
    text = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} {size}".encode()
    headers = [(b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


@asynccontextmanager
async def listening(application: Any = echo, **limits: Any) -> AsyncIterator[HttpListener]:
    listener = await HttpListener.start(application, "127.0.0.1:0", HttpLimits(**limits))
    try:
        yield listener
    finally:
        await listener.close()


async def ask(listener: HttpListener, *parts: bytes) -> bytes:
    """All that comes back, until the connection ends."""
    host, _, port = listener.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (b"/a/b?c=d", b"GET /a/b c=d 0"),
        (b"http://p.sls.test/a/b?c=d", b"GET /a/b c=d 0"),
        (b"http://p.sls.test:80/", b"GET /  0"),
        (b"http://p.sls.test", b"GET /  0"),
        (b"http://p.sls.test?c=http://d/", b"GET / c=http://d/ 0"),
        (b"//p/q", b"GET //p/q  0"),
        (b"/a%2Fb%00", b"GET /a/b\x00  0"),
    ],
)
def test_of_an_absolute_target_the_path_counts(target: bytes, told: bytes) -> None:
    async def main() -> None:
        async with listening() as listener:
            head = b" HTTP/1.1\r\nhost: p.sls.test\r\nconnection: close\r\n\r\n"
            answer = await ask(listener, b"GET " + target + head)
            assert answer.endswith(b"\r\n\r\n" + told)

    run(main())


@pytest.mark.parametrize(
    "request_data",
    [
        b"CONNECT p.sls.test:443 HTTP/1.1\r\nhost: p.sls.test:443\r\n\r\n",
        b"GET \xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 64,
    ],
)
def test_what_is_no_request_is_refused(request_data: bytes) -> None:
    async def main() -> None:
        async with listening() as listener:
            answer = await ask(listener, request_data)
            assert answer.startswith(b"HTTP/1.1 400 ") or answer == b""

    run(main())


def test_a_head_without_end_is_refused_before_it_takes_memory() -> None:
    async def main() -> None:
        async with listening(head_bytes_max=10_000) as listener:
            endless = [b"GET / HTTP/1.1\r\nx: ", *[b"y" * 10_000] * 200]
            assert b" 200 " not in await ask(listener, *endless)
            many = [b"GET / HTTP/1.1\r\n", *[b"x: y\r\n" * 1000] * 200]
            assert b" 200 " not in await ask(listener, *many)
            target = [b"GET /", *[b"y" * 10_000] * 200]
            assert b" 200 " not in await ask(listener, *target)
            assert b" 200 " in await ask(
                listener, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            )

    run(main())


def sent_whole(listener: HttpListener, data: bytes) -> bytes:
    """What a client reads that sends all it has first, as most do; an error where it is cut."""
    host, _, port = listener.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(data)
        found = b""
        while part := client.recv(1 << 16):
            found += part
        return found


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"y" * 2_000_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414),
        (b"GET /" + b"y" * 40_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 2_000_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 300_000 + b"\r\n", 431),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;"
            + b"y" * 3_000_000,
            413,
        ),
        (b"\x16\x03\x01 no request" + b"x" * 2_000_000, 400),
    ],
    ids=["endless url", "url", "header", "headers", "chunk", "none"],
)
def test_what_is_above_a_limit_is_answered_and_not_reset(
    data: bytes, status: int, loop_factory: Any
) -> None:
    async def main() -> None:
        async with listening(request_bytes_max=2_500_000) as listener:
            answer = await asyncio.to_thread(sent_whole, listener, data)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 %d " % status)
            assert b"connection: close" in head
            assert body.endswith(b"\n")
            assert answer.count(b"HTTP/1.1") == 1
            assert b" 200 " in await ask(
                listener, b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            )

    run(main(), loop_factory)


async def refusing(_scope: Any, _receive: Any, send: Any) -> None:
    """Answers before it has read anything of the body."""
    headers = [(b"content-length", b"4"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": b"none"})


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_an_answer_before_the_body_was_sent_is_read(loop_factory: Any) -> None:
    async def main() -> None:
        async with listening(refusing) as listener:
            size = 20_000_000
            head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size
            answer = await asyncio.to_thread(sent_whole, listener, head + bytes(size))
            assert answer.endswith(b"\r\n\r\nnone")

    run(main(), loop_factory)


def test_who_goes_on_sending_after_an_answer_is_cut_in_the_end() -> None:
    async def main() -> None:
        async with listening(refusing, request_bytes_max=1_000_000) as listener:
            head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000000\r\n\r\n"
            answer = await ask(listener, head, *[bytes(100_000)] * 1_000)
            assert answer == b"" or answer.endswith(b"none")
            assert listener.connection_count == 0

    run(main())


def test_a_large_body_does_not_count_as_head() -> None:
    async def main() -> None:
        async with listening(head_bytes_max=1000) as listener:
            head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            head += b"content-length: 1000000\r\n\r\n"
            assert (await ask(listener, head, b"x" * 1_000_000)).endswith(b"POST /  1000000")

    run(main())


def test_what_stands_between_chunks_and_behind_them_has_a_bound() -> None:
    async def main() -> None:
        async with listening(request_bytes_max=100_000) as listener:
            head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            trailers = [head, b"1\r\nx\r\n0\r\nx: ", *[b"y" * 10_000] * 50]
            assert b" 200 " not in await ask(listener, *trailers)
            extensions = [head, b"1;", *[b"y" * 10_000] * 50]
            assert b" 200 " not in await ask(listener, *extensions)

    run(main())


def test_requests_of_one_connection_are_answered_in_order() -> None:
    async def main() -> None:
        async with listening() as listener:
            lines = [
                b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc" % number
                for number in range(20)
            ]
            lines.append(b"GET /end HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            answer = await ask(listener, b"".join(lines))
            found = [line for line in answer.split(b"\r\n") if line.endswith(b" 3HTTP/1.1 200 OK")]
            assert [line.split()[1] for line in found] == [b"/%d" % each for each in range(20)]
            assert answer.endswith(b"GET /end  0")

    run(main())


def test_a_request_that_waits_does_not_hold_the_stop() -> None:
    async def main() -> None:
        is_asked = asyncio.Event()

        async def wait(_scope: Any, _receive: Any, _send: Any) -> None:
            is_asked.set()
            await asyncio.get_running_loop().create_future()

        async with listening(wait) as listener:
            host, _, port = listener.address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await is_asked.wait()
            async with asyncio.timeout(60):
                await listener.close()
            writer.close()

    run(main())


def test_a_client_that_waits_for_its_answer_longer_than_for_a_request_gets_it() -> None:
    loop = SkippingLoop()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await loop.skip(30)
        await echo(scope, receive, send)

    async def main() -> None:
        async with listening(slow, request_ms=20_000) as listener:
            head = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            assert (await ask(listener, head)).endswith(b"GET /  0")

    run(main(), lambda: loop)


def test_requests_of_all_sizes_go_through_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    path = str(tmp_path / "server.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)

    async def main() -> None:
        tls = ServerTls(TlsFiles(certificate=path)).context
        listener = await HttpListener.start(echo, "127.0.0.1:0", HttpLimits(), tls=tls)
        port = int(listener.address.rpartition(":")[2])
        for size in (0, 1, 100_000, 3_000_000):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname="localhost"
            )
            head = b"POST /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % size)
            writer.write(b"x" * size)
            async with asyncio.timeout(60):
                assert (await reader.read()).endswith(b"POST /x  %d" % size)
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
        plain = await ask(listener, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 200 " not in plain
        await listener.close()

    for loop_factory in (None, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_requests_that_come_in_one_piece_are_begun_turn_by_turn(
    monkeypatch: pytest.MonkeyPatch, loop_factory: Any
) -> None:
    """A turn parses two halves of 16 pieces of 2 KiB, with a slice of 4 more each at the most."""
    begun, count = 0, 8_000
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    on_headers_complete = http_listener._PacedConnection.on_headers_complete

    def spy(self: Any) -> None:
        nonlocal begun
        begun += 1
        on_headers_complete(self)

    monkeypatch.setattr(http_listener._PacedConnection, "on_headers_complete", spy)

    async def main() -> None:
        async with listening(request_ms=600_000) as listener:
            async with counting(lambda: begun) as most:
                reading = asyncio.create_task(
                    ask(listener, request * count + request[:-2] + b"connection: close\r\n\r\n")
                )
                answer = await reading
            assert answer.count(b"HTTP/1.1 200 OK") == count + 1
            assert begun == count + 1
            assert most.in_a_turn <= 40 * http_listener.HEAD_PIECE_BYTES // len(request)

    run(main(), loop_factory)


def test_a_large_body_comes_whole_though_it_is_read_in_pieces() -> None:
    async def main() -> None:
        async with listening() as listener:
            body = bytes(5_000_000)
            head = b"POST /p HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            answers = await asyncio.gather(
                *(ask(listener, head % len(body) + body) for _ in range(4))
            )
            assert all(each.endswith(b"POST /p  5000000") for each in answers)

    run(main(), uvloop.new_event_loop)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_requests_behind_one_that_is_not_answered_are_not_begun(
    monkeypatch: pytest.MonkeyPatch, loop_factory: Any
) -> None:
    begun, count = 0, 4_000
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    on_headers_complete = http_listener._PacedConnection.on_headers_complete

    def spy(self: Any) -> None:
        nonlocal begun
        begun += 1
        on_headers_complete(self)

    monkeypatch.setattr(http_listener._PacedConnection, "on_headers_complete", spy)

    async def main() -> None:
        may_answer = asyncio.Event()

        async def gated(scope: Any, receive: Any, send: Any) -> None:
            await may_answer.wait()
            await echo(scope, receive, send)

        # The client has sent all: however long the first answer takes, it is not late.
        async with listening(gated, request_ms=500) as listener:
            reading = asyncio.create_task(
                ask(listener, request * count + request[:-2] + b"connection: close\r\n\r\n")
            )
            await asyncio.sleep(0.6)
            assert 0 < begun <= http_listener.HEAD_PIECE_BYTES // len(request) + 1
            may_answer.set()
            assert (await reading).count(b"HTTP/1.1 200 OK") == count + 1

    run(main(), loop_factory)


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_no_more_is_read_while_something_is_unread(
    monkeypatch: pytest.MonkeyPatch, loop_factory: Any
) -> None:
    most = 0
    data_received = http_listener._PacedConnection.data_received

    def spy(self: Any, data: bytes) -> None:
        nonlocal most
        most = max(most, len(self._unread))
        data_received(self, data)

    monkeypatch.setattr(http_listener._PacedConnection, "data_received", spy)

    async def main() -> None:
        async with listening() as listener:
            body = bytes(8_000_000)
            head = b"POST /p HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            answers = await asyncio.gather(
                *(ask(listener, head % len(body) + body) for _ in range(2))
            )
            assert all(each.endswith(b"POST /p  8000000") for each in answers)
        assert not most

    run(main(), loop_factory)


def test_behind_the_last_answer_nothing_is_answered() -> None:
    asked = []

    async def once(scope: Any, _receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        headers = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def main() -> None:
        async with listening(once, keep_alive_ms=100) as listener:
            head = b" HTTP/1.1\r\nhost: x\r\n\r\n"
            answer = await ask(listener, b"GET /1" + head + b"GET /2" + head + b"GET /3 HTT")
            assert answer.endswith(b"\r\n\r\nok")
            assert answer.count(b"HTTP/1.1 ") == 1
        assert asked == ["/1"]

    run(main())
