"""Echo through `raftwood.net` against grpc.aio: requests/s, bytes/s, latency and CPU per request.

    python benchmarks/rpc_echo.py [--seconds 2] [--rounds 3] [--format json]

Server and client are processes of their own. Ours is authenticated and checksummed; without TLS it
meets grpc.aio's insecure channel, with TLS its secure one. The two take turns in short rounds and
the medians count, since machines are noisy; only ratios within one run mean anything.
"""

import argparse
import asyncio
import contextlib
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import psutil
import rich.console
import rich.table
import trustme
import uvloop

from raftwood.net import (
    ClientCredentials,
    ClientTls,
    Identity,
    Method,
    Secret,
    Server,
    ServerCredentials,
    ServerTls,
    Service,
    TlsFiles,
    connect,
)

CASES = [("100 B, 64 in flight", 100, 64), ("64 kB, 8 in flight", 65_536, 8)]
GOALS = {"100 B, 64 in flight": 15.0, "64 kB, 8 in flight": 4.0}
SYSTEMS = ("raftwood", "grpc")
TIMEOUT_MS = 30_000
ECHO = Method(1, "echo")
SECRET = Secret(b"a secret for the benchmark only!")
CLIENT = Identity(role="client", node_id="c1")
SERVER = Identity(role="node", node_id="n1")

Call = Callable[[bytes], Awaitable[Any]]
Result = dict[str, Any]


def contents(folder: str, name: str) -> bytes:
    return pathlib.Path(folder, name).read_bytes()


async def serve_raftwood(folder: str | None) -> None:
    service = Service()
    service.fast(ECHO, lambda call, payload: call.reply(payload))
    credentials = ServerCredentials(
        cluster_id="benchmark", identity=SERVER, secret_of={CLIENT: SECRET}.get
    )
    tls = ServerTls(TlsFiles(certificate=f"{folder}/server.pem")) if folder else None
    async with Server(service, credentials, random.SystemRandom()) as server:
        print(await server.listen(tls=tls), flush=True)
        await asyncio.Event().wait()


async def serve_grpc(folder: str | None) -> None:
    async def echo(request: bytes, _context: Any) -> bytes:
        return request

    server = grpc.aio.server()
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
    if folder:
        pem = contents(folder, "server.pem")
        port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(pem, pem)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


@contextlib.asynccontextmanager
async def raftwood_call(port: int, folder: str | None) -> Any:
    credentials = ClientCredentials(cluster_id="benchmark", identity=CLIENT, secret=SECRET)
    tls = ClientTls(TlsFiles(authorities=f"{folder}/authority.pem")) if folder else None
    async with await connect(
        "localhost" if folder else "127.0.0.1", port, credentials, random.SystemRandom(), tls=tls
    ) as connection:
        yield lambda payload: connection.call(ECHO, payload, TIMEOUT_MS)


@contextlib.asynccontextmanager
async def grpc_call(port: int, folder: str | None) -> Any:
    if folder:
        authority = contents(folder, "authority.pem")
        channel = grpc.aio.secure_channel(
            f"localhost:{port}", grpc.ssl_channel_credentials(authority)
        )
    else:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    async with channel:
        yield channel.unary_unary("/echo/Echo")


async def measure(call: Call, size: int, in_flight: int, seconds: float) -> Result:
    """Keep so many requests in flight for so long."""
    payload = random.Random(1).randbytes(size)
    latencies: list[float] = []
    clock = time.perf_counter

    async def worker(until: float) -> None:
        now = clock()
        while now < until:
            answer = await call(payload)
            then, now = now, clock()
            latencies.append(now - then)
        assert answer == payload

    await asyncio.gather(*(worker(clock() + 0.2) for _ in range(in_flight)))
    latencies.clear()
    cpu, began = time.process_time(), clock()
    await asyncio.gather(*(worker(began + seconds) for _ in range(in_flight)))
    elapsed, cpu = clock() - began, time.process_time() - cpu
    count = len(latencies)
    latencies.sort()
    return {
        "count": count,
        "requests_per_second": count / elapsed,
        "megabytes_per_second": count * size / elapsed / 1e6,
        "p50_ms": latencies[count // 2] * 1000,
        "p99_ms": latencies[count * 99 // 100] * 1000,
        "client_cpu_us": cpu / count * 1e6,
    }


async def run_client(system: str, port: int, folder: str | None) -> None:
    """Measure as each line on standard input asks."""
    connected = {"raftwood": raftwood_call, "grpc": grpc_call}[system]
    loop = asyncio.get_running_loop()
    async with connected(port, folder) as call:
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await measure(call, **json.loads(line))), flush=True)


class Pair:
    """The server and the client process of one system."""

    def __init__(self, system: str, folder: str | None) -> None:
        self._server = self._start("serve", system, 0, folder)
        port = int(self._line(self._server))
        self._client = self._start("client", system, port, folder)
        assert self._line(self._client) == "ready"

    @staticmethod
    def _start(part: str, system: str, port: int, folder: str | None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, __file__, part, system, str(port), folder or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def _line(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def _server_cpu_s(self) -> float:
        times = psutil.Process(self._server.pid).cpu_times()
        return float(times.user + times.system)

    def measure(self, size: int, in_flight: int, seconds: float) -> Result:
        assert self._client.stdin is not None
        order = {"size": size, "in_flight": in_flight, "seconds": seconds}
        before = self._server_cpu_s()
        self._client.stdin.write(json.dumps(order) + "\n")
        self._client.stdin.flush()
        result: Result = json.loads(self._line(self._client))
        # The server also worked while the client warmed up, in proportion.
        share = seconds / (seconds + 0.2)
        spent = (self._server_cpu_s() - before) * share
        result["server_cpu_us"] = spent / result.pop("count") * 1e6
        return result

    def stop(self) -> None:
        for process in (self._client, self._server):
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


@contextlib.contextmanager
def pairs(folder: str | None) -> Iterator[dict[str, Pair]]:
    started: dict[str, Pair] = {}
    try:
        for system in SYSTEMS:
            started[system] = Pair(system, folder)
        yield started
    finally:
        for pair in started.values():
            pair.stop()


def compare(seconds: float = 2.0, rounds: int = 3) -> list[Result]:
    """Medians of each case without and with TLS, and how many times ours is theirs."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(f"{folder}/authority.pem")
        issued = authority.issue_cert("localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(f"{folder}/server.pem")
        for tls in (False, True):
            with pairs(folder if tls else None) as systems:
                for name, size, in_flight in CASES:
                    taken: dict[str, list[Result]] = {system: [] for system in SYSTEMS}
                    for _ in range(rounds):
                        for system in SYSTEMS:
                            taken[system].append(systems[system].measure(size, in_flight, seconds))
                    results.append(_summary(name, tls, taken))
    return results


def _summary(name: str, tls: bool, taken: dict[str, list[Result]]) -> Result:
    medians = {
        system: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for system, rows in taken.items()
    }
    ours, theirs = medians["raftwood"], medians["grpc"]
    return {
        "case": name,
        "tls": tls,
        "raftwood": ours,
        "grpc": theirs,
        "ratio": ours["requests_per_second"] / theirs["requests_per_second"],
        "server_cpu_ratio": theirs["server_cpu_us"] / ours["server_cpu_us"],
        "client_cpu_ratio": theirs["client_cpu_us"] / ours["client_cpu_us"],
        "goal": GOALS[name],
    }


def table(results: list[Result]) -> rich.table.Table:
    shown = rich.table.Table(title="RPC echo, one connection")
    columns = ["case", "TLS", "system", "requests/s", "MB/s", "p50 ms", "p99 ms", "server µs"]
    for column in [*columns, "client µs", "ratio", "goal"]:
        shown.add_column(column, justify="left" if column in columns[:3] else "right")
    for result in results:
        for system in SYSTEMS:
            row = result[system]
            is_ours = system == "raftwood"
            shown.add_row(
                result["case"] if is_ours else "",
                ("yes" if result["tls"] else "no") if is_ours else "",
                system,
                f"{row['requests_per_second']:,.0f}",
                f"{row['megabytes_per_second']:,.0f}",
                f"{row['p50_ms']:.2f}",
                f"{row['p99_ms']:.2f}",
                f"{row['server_cpu_us']:.1f}",
                f"{row['client_cpu_us']:.1f}",
                f"{result['ratio']:.1f}×" if is_ours else "",
                f"{result['goal']:.0f}×" if is_ours else "",
            )
    return shown


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] in ("serve", "client"):
        part, system, port, folder = sys.argv[1:]
        if part == "client":
            uvloop.run(run_client(system, int(port), folder or None))
        else:
            serve = {"raftwood": serve_raftwood, "grpc": serve_grpc}[system]
            uvloop.run(serve(folder or None))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements per system and case")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    options = parser.parse_args()
    results = compare(options.seconds, options.rounds)
    if options.format == "json":
        print(json.dumps(results, indent=2))
    else:
        rich.console.Console().print(table(results))


if __name__ == "__main__":
    main()
