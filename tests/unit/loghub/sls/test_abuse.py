"""Those who want to break a gateway over HTTP: right codes, no 5xx, bounded memory and time."""

import asyncio
import random
import socket
import time
import zlib
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlencode

import lz4.block
import msgspec
import pytest
import zstandard

from raftwood.loghub.settings import GatewaySettings
from tests.kits.loghub.gateways import HttpGateway, parsed_answer, signed_headers
from tests.kits.loghub.sls import cursor, pull, put, raw_group, stream, values_of
from tests.kits.running import SkippingLoop, run, until

RAW_BYTES = 2 << 20
SETTINGS = GatewaySettings(
    http_listen="127.0.0.1:0",
    body_bytes_max=1 << 20,
    bodies_bytes_max=32 << 20,
    raw_bytes_max=RAW_BYTES,
    request_ms=1_000,
    connections_max=300,
)


class PeakMemory:
    """How much more than at first was ever resident, in MB."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._now()

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    def grown_mb(self) -> float:
        return (self._now() - self._before) / 1024


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def in_one_log(contents: bytes) -> bytes:
    return b"\x0a" + varint(len(contents)) + contents


BOMBS = {
    "zeros": b"\x00" * RAW_BYTES,
    "empty logs": b"\x0a\x00" * (RAW_BYTES // 2),
    "empty contents": in_one_log(b"\x08\x01" + b"\x12\x00" * (RAW_BYTES // 2 - 8)),
    "empty tags": b"\x32\x00" * (RAW_BYTES // 2),
    "unknown groups": b"\x3b\x3c" * (RAW_BYTES // 2),
    "deep groups": b"\x3b" * RAW_BYTES,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_of_a_log_group_takes_bounded_memory_and_time(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with stream(tmp_path, settings=SETTINGS) as served:
            raw = BOMBS[name]
            bodies = {
                "lz4": lz4.block.compress(raw, store_size=False),
                "zstd": zstandard.compress(raw),
            }
            memory, began = PeakMemory(), time.process_time()
            for compression, body in bodies.items():
                answer = await put(served, body, raw_bytes=len(raw), compression=compression)
                assert answer.status in (200, 400, 413), answer.body
            assert memory.grown_mb() < 20 * RAW_BYTES / (1 << 20)
            assert time.process_time() - began < 4.0

    run(main())


@pytest.mark.parametrize("declared", [10, RAW_BYTES])
def test_a_compressed_bomb_is_never_unpacked_beyond_its_bound(
    tmp_path: Path, declared: int
) -> None:
    async def main() -> None:
        async with stream(tmp_path, settings=SETTINGS) as served:
            zeros = b"\x00" * (60 << 20)
            bodies = {
                "lz4": lz4.block.compress(zeros, store_size=False),
                "zstd": zstandard.compress(zeros),
                "deflate": zlib.compress(zeros),
            }
            packer = zstandard.ZstdCompressor(write_content_size=False)
            frames = [packer.compress(zeros), bodies["zstd"]]
            del zeros
            memory = PeakMemory()
            for compression, body in [*bodies.items(), *(("zstd", frame) for frame in frames)]:
                answer = await put(served, body, raw_bytes=declared, compression=compression)
                assert (answer.status, answer.code) in (
                    (400, "ParameterInvalid"),
                    (413, "PostBodyTooLarge"),
                ), answer.body
            assert memory.grown_mb() < 40

    run(main())


def test_fuzzed_bodies_are_refused_or_stored_and_never_an_error_of_ours(tmp_path: Path) -> None:
    async def main() -> None:
        source = random.Random(7)
        async with stream(tmp_path, settings=SETTINGS) as served:
            raw = raw_group(*[f"message {number}" for number in range(20)])
            packed = {
                "": raw,
                "lz4": lz4.block.compress(raw, store_size=False),
                "zstd": zstandard.compress(raw),
            }
            stored = 0
            for _ in range(300):
                compression = source.choice(list(packed))
                body = bytearray(packed[compression])
                for _ in range(source.randrange(4)):
                    body[source.randrange(len(body))] = source.randrange(256)
                if source.random() < 0.3:
                    del body[source.randrange(len(body)) :]
                size = len(body) if not compression else len(raw)
                answer = await put(served, bytes(body), raw_bytes=size, compression=compression)
                assert answer.status in (200, 400, 413), answer.body
                stored += answer.status == 200
            assert stored
            at = await cursor(served, "begin")
            answer = await pull(served, at, accept_encoding="lz4")
            assert answer.status == 200

    run(main())


@pytest.mark.parametrize(
    "name", ["..", "../x", "%2e%2e%2fx", "a/b", "a%00b", "é", "x" * 129, "*", "-a", " ", "a%20b"]
)
def test_names_that_are_none_are_refused(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            for path in (f"/logstores/{name}", f"/logstores/s/consumergroups/{name}"):
                wire = path.encode() if "%" in path else path.replace(" ", "%20").encode()
                if not wire.isascii():
                    continue
                headers = signed_headers(
                    "GET",
                    unquote(wire.decode()),
                    host="p.sls.test",
                    parameters={},
                    headers={},
                    body=b"",
                    key=served.admin,
                )
                lines = [b"GET %b HTTP/1.1" % wire, b"connection: close"]
                lines += [f"{key}: {value}".encode() for key, value in headers.items()]
                answer = parsed_answer(await served.raw(b"\r\n".join([*lines, b"", b""])))
                assert answer.status in (400, 404), answer.body
            for body in (
                b'{"logstoreName":"%b","shardCount":1}' % name.encode(),
                b'{"projectName":"%b"}' % name.encode(),
            ):
                path = "/logstores" if b"logstore" in body else "/"
                project = "p" if b"logstore" in body else ""
                answer = await served.ask("POST", path, project=project, body=body)
                assert answer.code == "ParameterInvalid"
            answer = await served.ask("GET", "/logstores", project=name.replace("é", "e") + ".x")
            assert answer.status in (400, 404)

    run(main())


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{", b"\xff", b'{"logstoreName":1}', b"[" * 100_000,
     b'{"logstoreName":"x","ttl":-1}', b'{"logstoreName":"x","ttl":1e400}',
     b'{"logstoreName":"x","shardCount":99999}', b'{"logstoreName":"x","shardCount":0}',
     b'{"logstoreName":"x","ttl":' + b"9" * 5000 + b"}", b'{"logstoreName":"\\ud800"}'],
)  # fmt: skip
def test_json_that_is_wrong_is_refused(tmp_path: Path, body: bytes) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            for method, path in (
                ("POST", "/logstores"),
                ("POST", "/logstores/s/consumergroups"),
                ("POST", "/logstores/s/consumergroups/g"),
                ("POST", "/"),
            ):
                answer = await served.ask(method, path, project="p", body=body)
                assert (answer.status, answer.code) == (400, "ParameterInvalid"), answer.body

    run(main())


async def silent_puts(served: HttpGateway, count: int, *, is_signed: bool) -> list[bytes]:
    """Connections that each say to send much, and send a little."""
    host, _, port = served.address.rpartition(":")
    size = 1 << 20
    head = signed_headers(
        "POST",
        "/logstores/s",
        host="p.sls.test",
        parameters={},
        headers={"x-log-bodyrawsize": str(size), "content-length": str(size),
                 "content-md5": "0" * 32},
        body=b"",
        key=served.admin,
    )  # fmt: skip
    if not is_signed:
        head["authorization"] = "LOG me:xxx"
    lines = ["POST /logstores/s HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    data = "\r\n".join([*lines, "", ""]).encode() + b"x" * 1000

    async def one() -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        found = b""
        with suppress(ConnectionError):
            found = await reader.read(1000)
        writer.close()
        return found

    return await asyncio.gather(*(one() for _ in range(count)))


def test_those_who_announce_much_and_send_little_are_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path, settings=SETTINGS) as served:
            loop = asyncio.get_running_loop()
            memory, began = PeakMemory(), loop.time()
            answers = await silent_puts(served, 100, is_signed=True)
            assert loop.time() - began > 0.5
            # Beyond the budget of all bodies they are told to come again.
            assert all(answer == b"" or b" 503 " in answer for answer in answers)
            assert answers.count(b"") >= 30
            await silent_puts(served, 100, is_signed=False)
            assert memory.grown_mb() < 30
            # Nothing is held for them any more.
            await until(lambda: b"gateway_request_bytes 0.0" in served.metrics.render())
            assert (await put(served, raw_group("x"))).status == 200
            assert values_of(await pull(served, await cursor(served, "begin"))) == ["x"]

    run(main())


@pytest.mark.parametrize("name", ["host", "Authorization", "x-log-bodyrawsize", "Date"])
def test_a_header_that_says_two_things_is_refused(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            sent = signed_headers(
                "GET",
                "/logstores",
                host="p.sls.test",
                parameters={},
                headers={"x-log-bodyrawsize": "0"},
                body=b"",
                key=served.admin,
            )
            lines = [f"{each}: {value}" for each, value in sent.items()]
            request = "\r\n".join(
                [
                    "GET /logstores HTTP/1.1",
                    f"{name}: other.sls.test",
                    "connection: close",
                    "accept: a",
                    "accept: b",
                    *lines,
                    "",
                    "",
                ]
            )
            answer = parsed_answer(await served.raw(request.encode()))
            assert (answer.status, answer.code) == (400, "ParameterInvalid")
            assert name.lower() in answer.json()["errorMessage"]

    run(main())


def test_a_head_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path, settings=SETTINGS) as served:
            for part in (b"x: " + b"y" * 1_000_000, b"x: y\r\n" * 100_000):
                found = b""
                with suppress(ConnectionError):
                    found = await served.raw(b"GET / HTTP/1.1\r\n" + part)
                assert b" 431 " in found or found == b""
            assert (await served.ask("GET", "/")).status == 200

    run(main())


def test_those_who_do_not_read_what_they_pull_hold_no_more_than_the_budget(tmp_path: Path) -> None:
    loop = SkippingLoop()

    async def main() -> None:
        settings = msgspec.structs.replace(SETTINGS, request_ms=3_600_000)
        async with stream(tmp_path, settings=settings) as served:
            noise = random.Random(1)
            for _ in range(6):
                group = raw_group(noise.randbytes(450_000).hex())
                assert (await put(served, group)).status == 200
            begin = await cursor(served, "begin")
            answer = await pull(served, begin)
            assert len(answer.body) > 4_000_000
            memory = PeakMemory()
            writers = [await never_reading(served, begin) for _ in range(40)]
            await until(lambda: metric(served, "raftwood_gateway_request_bytes") > 16 << 20)
            assert metric(served, "raftwood_gateway_request_bytes") <= 32 << 20
            answer = await pull(served, begin)
            assert (answer.status, answer.code) == (503, "ServerBusy")
            assert memory.grown_mb() < 150
            while metric(served, "raftwood_gateway_request_bytes"):
                await loop.skip(360)
            assert (await pull(served, begin)).status == 200
            for writer in writers:
                writer.close()

    run(main(), lambda: loop)


async def never_reading(served: HttpGateway, start: str) -> asyncio.StreamWriter:
    """A connection that asked for a pull, and reads none of it."""
    host, _, port = served.address.rpartition(":")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect((host, int(port)))
    plain.setblocking(False)
    _, writer = await asyncio.open_connection(sock=plain, limit=1000)
    parameters = {"type": "log", "cursor": start}
    headers = signed_headers(
        "GET",
        "/logstores/s/shards/0",
        host="p.sls.test",
        parameters=parameters,
        headers={},
        body=b"",
        key=served.admin,
    )
    lines = [f"GET /logstores/s/shards/0?{urlencode(parameters)} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    return writer


def metric(served: HttpGateway, name: str) -> float:
    lines = served.metrics.render().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
