"""Health and metrics over HTTP, asked for with real requests on both event loops."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
import uvloop
from tests.kits.running import SkippingLoop, run, until

from raftwood.base.configuration import compose
from raftwood.base.errors import InvalidConfiguration, Unavailable
from raftwood.base.metrics import Metrics
from raftwood.base.settings import HttpSettings, Secret
from raftwood.net import http_listener
from raftwood.server.http_server import Check, HttpServer
from raftwood.server.settings import Settings

TOKEN = "the scraper's own"
SETTINGS = HttpSettings(listen="127.0.0.1:0")
HOUR_S = 3_600.0
PATIENT = HttpSettings(listen="127.0.0.1:0", request_ms=3_600_000, keep_alive_ms=7_200_000)
READY: Mapping[str, Check] = {"store": lambda: ""}


def run_on_uvloop(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


both_loops = pytest.mark.parametrize(
    "run_on", [pytest.param(run, id="asyncio"), pytest.param(run_on_uvloop, id="uvloop")]
)
RunOn = Callable[[Coroutine[Any, Any, None]], None]


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: str


@asynccontextmanager
async def served(
    settings: HttpSettings = SETTINGS,
    *,
    metrics: Metrics | None = None,
    token: str = TOKEN,
    checks: Mapping[str, Check] = READY,
) -> AsyncIterator[HttpServer]:
    server = await HttpServer.start(
        settings, metrics=metrics or Metrics(), token=Secret(token), checks=checks
    )
    try:
        yield server
    finally:
        await server.close()


async def connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def ask(server: HttpServer, path: str, *headers: str, method: str = "GET") -> Answer:
    reader, writer = await connect(server)
    lines = [f"{method} {path} HTTP/1.1", "Host: here", "Connection: close", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(60):
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    await end(writer)
    first, *rest = head.split("\r\n")
    return Answer(int(first.split()[1]), dict(line.split(": ", 1) for line in rest), body)


@both_loops
def test_a_process_whose_loop_turns_is_alive(run_on: RunOn) -> None:
    async def main() -> None:
        async with served(checks={"store": lambda: "not ready"}) as server:
            answer = await ask(server, "/livez")
            assert (answer.status, answer.body) == (200, "ok\n")
            assert answer.headers["cache-control"] == "no-store"
            assert "server" not in answer.headers

    run_on(main())


@both_loops
def test_the_root_says_what_the_port_is(run_on: RunOn) -> None:
    async def main() -> None:
        async with served() as server:
            answer = await ask(server, "/")
            assert answer.status == 200
            for page in ("/livez", "/readyz", "/metrics", "gateway.http_listen"):
                assert page in answer.body

    run_on(main())


@both_loops
def test_each_check_that_fails_has_its_line(run_on: RunOn) -> None:
    reasons = {"store": "", "metastore": "no leader is known", "disk": "it is full"}

    async def main() -> None:
        checks = {name: lambda name=name: reasons[name] for name in reasons}
        async with served(checks=checks) as server:
            answer = await ask(server, "/readyz")
            assert answer.status == 503
            assert answer.body == "metastore: no leader is known\ndisk: it is full\n"
            reasons.update(metastore="", disk="")
            answer = await ask(server, "/readyz")
            assert (answer.status, answer.body) == (200, "ok\n")

    run_on(main())


@both_loops
def test_metrics_are_for_those_who_have_the_token(run_on: RunOn) -> None:
    async def main() -> None:
        metrics = Metrics(store="3")
        metrics.counter("writes_total", "Writes.").inc()
        async with served(metrics=metrics) as server:
            answer = await ask(server, "/metrics", f"Authorization: Bearer {TOKEN}")
            assert answer.status == 200
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert 'raftwood_writes_total{store="3"} 1.0' in answer.body
            answer = await ask(server, "/metrics", f"authorization: bearer  {TOKEN}")
            assert answer.status == 200, "the scheme is written in any case"

    run_on(main())


@pytest.mark.parametrize(
    "header",
    [
        "X: y",
        "Authorization: Bearer",
        "Authorization: Bearer wrong",
        f"Authorization: Basic {TOKEN}",
    ],
)
def test_a_wrong_token_is_refused_with_the_remedy(header: str) -> None:
    async def main() -> None:
        async with served() as server:
            answer = await ask(server, "/metrics", header)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "Authorization: Bearer TOKEN" in answer.body
            assert TOKEN not in answer.body

    run(main())


def test_a_token_may_have_any_letters() -> None:
    async def main() -> None:
        async with served(token="höher") as server:
            answer = await ask(server, "/metrics", "Authorization: Bearer höher")
            assert answer.status == 200
            assert (await ask(server, "/metrics", "Authorization: Bearer ö")).status == 401

    run(main())


def test_without_a_token_in_the_settings_there_are_no_metrics() -> None:
    async def main() -> None:
        async with served(token="") as server:
            for header in ("X: y", "Authorization: Bearer ", "Authorization: Bearer x"):
                answer = await ask(server, "/metrics", header)
                assert answer.status == 403
                assert "set secrets.metrics" in answer.body

    run(main())


@both_loops
def test_other_paths_methods_and_requests_are_refused(run_on: RunOn) -> None:
    async def main() -> None:
        async with served() as server:
            answer = await ask(server, "/livez", method="HEAD")
            assert (answer.status, answer.body) == (200, "")
            assert answer.headers["content-length"] == "3"
            assert (await ask(server, "/elsewhere")).status == 404
            assert (await ask(server, "/livez/")).status == 404
            assert (await ask(server, "/livez", method="POST")).status == 405
            assert (await ask(server, "/livez", "no header")).status == 400
            upgrade = ("Connection: Upgrade", "Upgrade: websocket")
            assert (await ask(server, "/livez", *upgrade)).status == 200

    run_on(main())


def test_a_check_with_a_bug_is_an_error_and_no_readiness(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def check() -> str:
        raise ZeroDivisionError("what only the log may tell")

    async def main() -> None:
        async with served(checks={"store": check}) as server:
            answer = await ask(server, "/readyz")
            assert answer.status == 500
            assert "what only" not in answer.body
            assert (await ask(server, "/livez")).status == 200

    run(main())
    output = "".join(capsys.readouterr())
    assert "Exception in ASGI application" in output
    assert "ZeroDivisionError" in output


@both_loops
def test_a_port_that_is_taken_is_told_with_the_remedy(run_on: RunOn) -> None:
    async def main() -> None:
        async with served() as server:
            message = f"cannot listen on {server.address}: .*set http.listen"
            with pytest.raises(Unavailable, match=message):
                async with served(HttpSettings(listen=server.address)):
                    pass

    run_on(main())


@pytest.mark.needs("ipv6")
def test_an_address_of_version_6_is_told_as_it_is_given() -> None:
    async def main() -> None:
        async with served(HttpSettings(listen="[::1]:0")) as server:
            assert re.fullmatch(r"\[::1\]:[1-9]\d*", server.address)

    run(main())


def test_signals_stay_whose_they_were() -> None:
    async def main() -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        async with served():
            after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
            assert after == before

    run(main())


@both_loops
def test_a_slow_client_does_not_hold_the_stop(run_on: RunOn) -> None:
    async def main() -> None:
        metrics = Metrics()
        metrics.counter("large_total", "large" * 4_000_000)
        async with served(metrics=metrics) as server:
            _, silent = await connect(server)
            _, half = await connect(server)
            half.write(b"GET /livez HTTP/1.1\r\nHost:")
            _, no_end = await connect(server)
            no_end.write(b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx")
            _, never_reads = await connect(server)
            header = f"Host: x\r\nAuthorization: Bearer {TOKEN}"
            never_reads.write(f"GET /metrics HTTP/1.1\r\n{header}\r\n\r\n".encode())
            await until(lambda: server._listener.connection_count == 4)
            async with asyncio.timeout(60):
                await server.close()
            for writer in (silent, half, no_end, never_reads):
                await end(writer)

    run_on(main())


@both_loops
def test_idle_clients_do_not_delay_the_stop(run_on: RunOn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "STOP_S_MAX", 3_600.0)

    async def main() -> None:
        async with served() as server:
            _, silent = await connect(server)
            reader, kept = await connect(server)
            kept.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"ok\n")
            async with asyncio.timeout(60):
                await server.close()
            for writer in (silent, kept):
                await end(writer)

    run_on(main())


def run_with_skips(main: Callable[[SkippingLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SkippingLoop()
    run(main(loop), lambda: loop)


@pytest.mark.parametrize(
    "request_start",
    [
        b"",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nX:",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
    ],
    ids=["nothing", "half a header", "no end of the body"],
)
def test_who_is_too_slow_with_a_request_is_cut_off(request_start: bytes) -> None:
    async def main(loop: SkippingLoop) -> None:
        async with served(PATIENT) as server:
            began = loop.time()
            reader, writer = await connect(server)
            writer.write(request_start)
            await until(lambda: server._listener.connection_count == 1)
            while server._listener.connection_count:
                await loop.skip(HOUR_S / 10)
                if request_start:
                    writer.write(b"x")
            assert HOUR_S <= loop.time() - began < 1.5 * HOUR_S
            with suppress(ConnectionError):
                await reader.read()
            await end(writer)

    run_with_skips(main)


def test_who_does_not_read_the_answer_is_cut_off() -> None:
    async def main(loop: SkippingLoop) -> None:
        metrics = Metrics()
        metrics.counter("large_total", "large" * 4_000_000)
        async with served(PATIENT, metrics=metrics) as server:
            reader, writer = await connect(server)
            header = f"Host: x\r\nAuthorization: Bearer {TOKEN}"
            writer.write(f"GET /metrics HTTP/1.1\r\n{header}\r\n\r\n".encode())
            await until(lambda: server._listener.connection_count == 1)
            while server._listener.connection_count:
                await loop.skip(HOUR_S / 10)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(20_000_000)
            await end(writer)

    run_with_skips(main)


def test_a_connection_is_kept_for_the_next_request_and_not_for_ever() -> None:
    async def main(loop: SkippingLoop) -> None:
        async with served(PATIENT) as server:
            reader, writer = await connect(server)
            for _ in range(3):
                writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                assert b"200 OK" in await reader.readuntil(b"ok\n")
                # Longer than a request may take, as none is under way.
                await loop.skip(1.5 * HOUR_S)
            await loop.skip(1.5 * HOUR_S)
            assert await reader.read() == b""
            await end(writer)

    run_with_skips(main)


def test_each_request_on_a_connection_has_a_time_of_its_own() -> None:
    async def main(loop: SkippingLoop) -> None:
        async with served(PATIENT) as server:
            reader, writer = await connect(server)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"ok\n")
            await loop.skip(0.7 * HOUR_S)
            writer.write(b"GET /livez HTTP/1.1\r\n")
            await loop.skip(0.7 * HOUR_S)
            writer.write(b"Host: x\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"ok\n")
            await end(writer)

    run_with_skips(main)


@both_loops
def test_the_oldest_idle_connection_makes_room_for_a_probe(run_on: RunOn) -> None:
    async def main() -> None:
        settings = HttpSettings(listen="127.0.0.1:0", connections_max=2, request_ms=600_000)
        async with served(settings) as server:
            (oldest, first), (idle, second) = [await connect(server) for _ in range(2)]
            await until(lambda: server._listener.connection_count == 2)
            assert (await ask(server, "/livez")).status == 200
            assert await oldest.read() == b""
            second.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            await idle.readuntil(b"ok\n")
            for writer in (first, second):
                await end(writer)

    run_on(main())


@both_loops
def test_connections_with_the_token_stay_and_others_are_told_so(run_on: RunOn) -> None:
    async def main() -> None:
        settings = HttpSettings(listen="127.0.0.1:0", connections_max=2, keep_alive_ms=600_000)
        async with served(settings) as server:
            writers = []
            for _ in range(2):
                reader, writer = await connect(server)
                head = f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
                writer.write(head.encode())
                assert b" 200 " in await reader.readline()
                writers.append(writer)
            answer = await ask(server, "/livez")
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert "connections_max" in answer.body
            for writer in writers:
                await end(writer)
            await until(lambda: server._listener.connection_count == 0)
            assert (await ask(server, "/livez")).status == 200

    run_on(main())


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:65536", ":80", "a b:1"])
def test_an_address_that_is_none_is_refused_by_the_settings(listen: str) -> None:
    with pytest.raises(InvalidConfiguration, match=re.escape("http")):
        compose(Settings, flags=[f"http.listen={listen}"])
