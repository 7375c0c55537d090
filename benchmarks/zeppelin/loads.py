"""One load each: redis-benchmark for whatever speaks Redis's protocol, a Go program for etcd."""

import csv
import json
import resource
import subprocess
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
FILL_TIMES = 3
"""Keys are drawn, so that some come several times: so one in twenty stays without a value."""


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


def measure(endpoint: Endpoint, case: Case, *, seconds: float) -> Figures:
    """For about so long; a short load before it tells how many requests that are."""
    warm = _run(endpoint, case, COUNT_WARM * case.pipeline // case.keys, seconds=seconds)
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
    """Nearly all keys get a value, so that reads find one."""
    for operation in ("SET", "MSET"):
        case = Case(operation, 50, 16)
        _run(endpoint, case, FILL_TIMES * KEYS // case.keys, seconds=0.0)


def _run(endpoint: Endpoint, case: Case, count: int, *, seconds: float) -> dict[str, float]:
    command = etcd_command if endpoint.is_etcd else redis_command
    try:
        done = subprocess.run(
            command(endpoint, case, count)
            + ([f"--seconds={seconds}s"] if endpoint.is_etcd else []),
            env=None if endpoint.environment is None else dict(endpoint.environment),
            capture_output=True,
            text=True,
            check=True,
            timeout=LOAD_S_MAX,
        )
    except subprocess.SubprocessError as problem:
        said = (getattr(problem, "stderr", "") or "").strip().splitlines()[-1:]
        raise ClusterFailed(f"{case.name}: {' '.join(said) or type(problem).__name__}") from problem
    return etcd_result(done.stdout) if endpoint.is_etcd else redis_result(done.stdout, count)


def redis_command(endpoint: Endpoint, case: Case, count: int) -> list[str]:
    keys = max(1, KEYS // SLOTS) if endpoint.is_cluster else KEYS
    command = [endpoint.program, "-p", str(endpoint.port), "--csv", "-r", str(keys)]
    command += ["-n", str(count), "-c", str(case.connections), "-P", str(case.pipeline)]
    if endpoint.user:
        command += ["--user", endpoint.user, "-a", endpoint.password]
    if endpoint.is_cluster:
        # By itself it would take a thread for each master, and so another load for each cluster.
        command += ["--cluster", "--threads", "1"]
    return command + _request(case, is_cluster=endpoint.is_cluster)


def _request(case: Case, *, is_cluster: bool) -> list[str]:
    """In a cluster `{tag}` is put in for a slot of the node; else it is a tag as any other."""
    has_tag = is_cluster or case.keys > 1
    start = "counter" if case.operation == "INCR" else "key"
    words = [f"{start}:{{tag}}:__rand_int__" if has_tag else f"{start}:__rand_int__"]
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
