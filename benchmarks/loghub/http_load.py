"""A load of LogHub over HTTP: 500 records for each request, over a few connections that stay open.

SLS puts are LogGroups with lz4, signed as its clients do; JSON lines come as they are.
"""

import argparse
import asyncio
import base64
import hashlib
import os
import pathlib
import time
from collections.abc import Callable
from email.utils import formatdate

import msgspec

from benchmarks.harness.load import parser, say, say_result
from benchmarks.loghub.ways import PRODUCED, PROJECT, SLS_PUT, Key
from raftwood.base.compression import Codec, compress
from raftwood.base.log_group_codec import encode_record
from raftwood.loghub.server.sls.signatures import SignedParts, signature_v1
from raftwood.server.event_loop import run

RECORDS = 500
CONNECTIONS = 8
HOST = f"{PROJECT}.sls.benchmark"


def sls_put(key: Key, size: int) -> Callable[[], bytes]:
    """Makes a request, signed anew each time."""
    group = b"".join(
        encode_record({"message": os.urandom(size // 2).hex()}, time.time_ns())
        for _ in range(RECORDS)
    )
    body = bytes(compress(group, Codec.LZ4))
    path = f"/logstores/{PRODUCED}/shards/lb"
    fixed = {
        "host": HOST,
        "content-type": "application/x-protobuf",
        "content-length": str(len(body)),
        "x-log-apiversion": "0.6.0",
        "x-log-signaturemethod": "hmac-sha1",
        "x-log-bodyrawsize": str(len(group)),
        "x-log-compresstype": "lz4",
    }

    def made() -> bytes:
        headers = fixed | {
            "date": formatdate(usegmt=True),
            "content-md5": hashlib.md5(body, usedforsecurity=False).hexdigest().upper(),
        }
        raw = {name.encode(): value.encode() for name, value in headers.items()}
        signature = signature_v1(key.secret, SignedParts("POST", path, {}, raw))
        return _request(path, headers | {"authorization": f"LOG {key.id}:{signature}"}, body)

    return made


def json_lines(key: Key, size: int) -> Callable[[], bytes]:
    body = b"".join(
        msgspec.json.encode({"message": os.urandom(size // 2).hex()}) + b"\n"
        for _ in range(RECORDS)
    )
    login = base64.b64encode(f"{key.id}:{key.secret}".encode()).decode()
    headers = {
        "host": "localhost",
        "content-type": "application/x-ndjson",
        "content-length": str(len(body)),
        "authorization": f"Basic {login}",
    }
    whole = _request(f"/api/v1/projects/{PROJECT}/logstores/{PRODUCED}/lines", headers, body)
    return lambda: whole


def _request(path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def work(address: str, made: Callable[[], bytes], latencies: list[float]) -> None:
    """One request after the other over one connection, for ever."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        while True:
            began = time.perf_counter()
            writer.write(made())
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 2"):
                raise SystemExit(f"a put was refused: {head.decode(errors='replace')[:300]}")
            await reader.readexactly(_length(head))
            latencies.append(time.perf_counter() - began)
    finally:
        writer.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


async def load(given: argparse.Namespace, key: Key) -> None:
    make = sls_put if given.way == SLS_PUT else json_lines
    made = make(key, given.bytes)
    latencies: list[float] = []
    tasks = [
        asyncio.create_task(work(given.addresses, made, latencies)) for _ in range(CONNECTIONS)
    ]
    await _watch(tasks, given.warm)
    say("warm")
    latencies.clear()
    cpu, began = time.process_time(), time.perf_counter()
    await _watch(tasks, given.seconds)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu
    say_result(latencies, elapsed_s=elapsed, cpu_s=cpu, count=len(latencies) * RECORDS)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _watch(tasks: "list[asyncio.Task[None]]", seconds: float) -> None:
    """Let them work for so long; what one of them fails with is raised."""
    done, _ = await asyncio.wait(
        tasks, timeout=max(seconds, 0.001), return_when=asyncio.FIRST_COMPLETED
    )
    for task in done:
        task.result()


def main() -> None:
    flags = parser()
    flags.add_argument("--addresses", required=True)
    flags.add_argument("--key", required=True, help="a file with the access key")
    given = flags.parse_args()
    run(load(given, msgspec.json.decode(pathlib.Path(given.key).read_bytes(), type=Key)))


if __name__ == "__main__":
    main()
