"""One load each: redis-benchmark for whatever speaks Redis's protocol, a Go program for etcd."""

import contextlib
import csv
import json
import math
import resource
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

import msgspec
import psutil

from benchmarks.harness.cluster import ClusterFailed
from benchmarks.harness.measure import Figures
from benchmarks.zeppelin.cases import KEYS, READS, VALUE_BYTES, Case
from raftwood.zeppelin.slots import SLOTS

LOAD_S_MAX = 60.0
COUNT_WARM = 4_000
COUNT_MIN = 200
FILL_KEYS = 500
FILL_S_MAX = 30.0
FILL_PAUSE_S = 2.0


class Endpoint(msgspec.Struct, kw_only=True):
    """A system that runs."""

    port: int
    processes: tuple[int, ...]
    """The servers' process numbers."""
    program: str
    """What loads it."""
    environment: Mapping[str, str] | None = None
    user: str = ""
    password: str = ""
    is_cluster: bool = False
    is_etcd: bool = False
    halves: tuple[tuple[int, str], ...] = ()
    """Where there are some: ports and tags, each loaded by a program of its own, all at once."""


def measure(endpoint: Endpoint, case: Case, *, seconds: float) -> Figures:
    """For about so long; a short load before it tells how many requests that are."""
    warm_count = COUNT_WARM * math.isqrt(case.pipeline) // math.isqrt(case.keys)
    warm = _run(endpoint, case, warm_count, seconds=seconds)
    count = int(warm["rate"] * seconds)
    cpu_s, client_s = _cpu_s(endpoint.processes), _children_s()
    found = _run(endpoint, case, max(count, COUNT_MIN, case.connections), seconds=seconds)
    cpu_s, client_s = _cpu_s(endpoint.processes) - cpu_s, _children_s() - client_s
    return Figures(
        appends_per_second=found["rate"],
        megabytes_per_second=found["rate"] * case.keys * VALUE_BYTES / 1e6,
        p50_ms=found["p50_ms"],
        p99_ms=found["p99_ms"],
        leader_cpu_us=cpu_s / found["count"] * 1e6,
        follower_cpu_us=0.0,
        client_cpu_us=client_s / found["count"] * 1e6,
    )


def fill(endpoint: Endpoint) -> None:
    """All keys get a value, so that reads find one; what that leaves to do gets some time."""
    with socket.create_connection(("127.0.0.1", endpoint.port), FILL_S_MAX) as connection:
        if endpoint.user:
            login = _encoded("AUTH", endpoint.user, endpoint.password)
            _ask(connection, [login])
        for start in range(0, KEYS, FILL_KEYS):
            numbers = range(start, min(start + FILL_KEYS, KEYS))
            keys = [f"{kind}:{number:012}" for kind in ("key", "key:{tag}") for number in numbers]
            asked = [_encoded("SET", key, "x" * VALUE_BYTES) for key in keys]
            asked += [_encoded("SET", f"counter:{number:012}", "1") for number in numbers]
            _ask(connection, asked)
    time.sleep(FILL_PAUSE_S)


def _encoded(*words: str) -> bytes:
    parts = [f"*{len(words)}"]
    for word in words:
        parts += [f"${len(word)}", word]
    return "\r\n".join([*parts, ""]).encode()


def _ask(connection: socket.socket, requests: list[bytes]) -> None:
    connection.sendall(b"".join(requests))
    expected, found = b"+OK\r\n" * len(requests), b""
    while len(found) < len(expected):
        piece = connection.recv(1 << 16)
        found += piece
        if not piece or not expected.startswith(found):
            raise ClusterFailed(f"a key could not be written: {found[-200:]!r}")


def _run(endpoint: Endpoint, case: Case, count: int, *, seconds: float) -> dict[str, float]:
    """One load; or two halves of it, whose rates add up."""
    if endpoint.is_etcd:
        return etcd_result(_said(endpoint, case, [etcd_command(endpoint, case, seconds)])[0])
    if not endpoint.halves:
        return redis_result(_said(endpoint, case, [redis_command(endpoint, case, count)])[0], count)
    part = msgspec.structs.replace(case, connections=case.connections // len(endpoint.halves))
    share = count // len(endpoint.halves)
    commands = [
        redis_command(msgspec.structs.replace(endpoint, port=port), part, share, tag=tag)
        for port, tag in endpoint.halves
    ]
    found = [redis_result(text, share) for text in _said(endpoint, case, commands)]
    together = {name: max(each[name] for each in found) for name in found[0]}
    return together | {name: sum(each[name] for each in found) for name in ("count", "rate")}


def _said(endpoint: Endpoint, case: Case, commands: list[list[str]]) -> list[str]:
    """What programs print that run at the same time."""
    environment = None if endpoint.environment is None else dict(endpoint.environment)
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for command in commands
        ]
        try:
            said = [each.communicate(timeout=LOAD_S_MAX) for each in running]
        except subprocess.TimeoutExpired:
            raise ClusterFailed(f"{case.name}: no end after {LOAD_S_MAX:.0f} s") from None
        finally:
            for each in running:
                each.kill()
    for each, (_, errors) in zip(running, said, strict=True):
        if each.returncode:
            raise ClusterFailed(f"{case.name}: {errors.strip()[-200:]}")
    return [printed for printed, _ in said]


def redis_command(endpoint: Endpoint, case: Case, count: int, *, tag: str = "") -> list[str]:
    keys = max(1, KEYS // SLOTS) if endpoint.is_cluster else KEYS
    command = [endpoint.program, "-p", str(endpoint.port), "--csv", "-r", str(keys)]
    command += ["-n", str(count), "-c", str(case.connections), "-P", str(case.pipeline)]
    if endpoint.user:
        command += ["--user", endpoint.user, "-a", endpoint.password]
    if endpoint.is_cluster:
        # By itself it would take a thread for each master, and so another load for each cluster.
        command += ["--cluster", "--threads", "1"]
    # In a cluster `{tag}` is put in for a slot of the node; else it is a tag as any other.
    return command + _request(case, tag or ("tag" if endpoint.is_cluster or case.keys > 1 else ""))


def _request(case: Case, tag: str) -> list[str]:
    start = "counter" if case.operation == "INCR" else "key"
    words = [f"{start}:{{{tag}}}:__rand_int__" if tag else f"{start}:__rand_int__"]
    if case.operation in ("SET", "MSET"):
        words.append("x" * VALUE_BYTES)
    return [case.operation, *words * case.keys]


def redis_result(text: str, count: int) -> dict[str, float]:
    """Of the lines that redis-benchmark prints; an error of the server is among them."""
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) < 2 or len(rows[-1]) < 7:
        raise ClusterFailed(f"redis-benchmark says {text.strip()[-200:]}")
    numbers = dict(zip(rows[0], rows[-1], strict=False))
    return {
        "count": float(count),
        "rate": float(numbers["rps"]),
        "p50_ms": float(numbers["p50_latency_ms"]),
        "p99_ms": float(numbers["p99_latency_ms"]),
    }


def etcd_command(endpoint: Endpoint, case: Case, seconds: float) -> list[str]:
    """So many in flight as there would be connections: it has one for all of them."""
    command = [endpoint.program, f"--nodes=127.0.0.1:{endpoint.port}", "--warm=0.2s"]
    command += [f"--seconds={seconds}s"]
    command += [f"--in-flight={case.connections}", f"--bytes={VALUE_BYTES}"]
    return [*command, f"--keys={case.keys}", *(["--get"] if case.operation in READS else [])]


def etcd_result(text: str) -> dict[str, float]:
    result = json.loads(text.splitlines()[-1])
    return {
        "count": result["count"],
        "rate": result["count"] / result["elapsed_s"],
        "p50_ms": result["p50_ms"],
        "p99_ms": result["p99_ms"],
    }


def _cpu_s(processes: Sequence[int]) -> float:
    times = [psutil.Process(each).cpu_times() for each in processes]
    return sum(float(each.user + each.system) for each in times)


def _children_s() -> float:
    """Of processes that have ended: the load, since servers go on."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
