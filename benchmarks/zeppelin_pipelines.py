"""Ten clients with deep pipelines at one node of Zeppelin: what another client notices of it.

    python -m benchmarks.zeppelin_pipelines [COMMANDS]

Each of the ten is a `redis-cli --pipe` with so many SETs of 100 bytes (100,000 by default). The
other one sends a GET, waits for its answer, and sends the next 2 ms later; first alone, then beside
the ten. What counts is the ratio of the two, and that nobody gets an error or loses a lease.
"""

import contextlib
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from tests.kits.zeppelin.processes import KvProcesses, Login, kv_processes
from tests.kits.zeppelin.redis_tools import Tools

from raftwood.zeppelin.model import TableConfig

CLIENTS = 10
COMMANDS = 100_000
VALUE = b"x" * 100
QUIET_S = 5.0
PAUSE_S = 0.002
ANSWER_S_MAX = 120.0
P99_RATIO_MAX = 20.0
SETTINGS = {
    # As they are by default.
    "zeppelin_meta.heartbeat_ms": 500,
    "zeppelin_meta.lease_ms": 2_000,
    "zeppelin_meta.down_ms": 3_000,
}


def encoded(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Prober:
    """The other client."""

    def __init__(self, port: int, login: Login) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.errors = 0
        assert self._ask(b"AUTH", login.user.encode(), login.password.encode()) == b"+OK\r\n"
        assert self._ask(b"SET", b"probe", b"1") == b"+OK\r\n"

    def _ask(self, *words: bytes) -> bytes:
        self._socket.sendall(encoded(*words))
        return self._socket.recv(1 << 12)

    def get(self) -> float:
        """How many seconds one took."""
        began = time.perf_counter()
        answer = self._ask(b"GET", b"probe")
        took = time.perf_counter() - began
        self.errors += answer != b"$1\r\n1\r\n"
        time.sleep(PAUSE_S)
        return took

    def close(self) -> None:
        self._socket.close()


def quantile_ms(times: list[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000


def piped(folder: Path, tools: Tools, commands: int) -> list[subprocess.Popen[str]]:
    """All of them, each with keys of its own."""
    started = []
    for number in range(CLIENTS):
        given = folder / f"given-{number}"
        keys = (b"k%d:%06d" % (number, each) for each in range(commands))
        given.write_bytes(b"".join(encoded(b"SET", key, VALUE) for key in keys))
        with given.open() as file:
            command = tools.command("redis-cli", "--pipe", "--pipe-timeout", "120")
            started.append(
                subprocess.Popen(
                    command,
                    env=tools.environment,
                    stdin=file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
    return started


def epochs(cluster: KvProcesses, login: Login) -> list[int]:
    return [each.epoch for each in cluster.topology().tables[login.table].partitions]


def main(commands: int) -> int:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(kv_processes(folder, nodes=1, settings=SETTINGS))
        login = cluster.create_table("piped", TableConfig(partitions=4, replicas=1))
        port = cluster.ports["node-1"][0]
        prober = stack.enter_context(contextlib.closing(Prober(port, login)))
        node = psutil.Process(cluster.nodes[1].pid)
        before = epochs(cluster, login)
        quiet, loaded = [], []
        end = time.monotonic() + QUIET_S
        while time.monotonic() < end:
            quiet.append(prober.get())
        pipes = piped(folder, Tools(port, login.user, login.password), commands)
        cpu, began = node.cpu_times(), time.monotonic()
        while any(each.poll() is None for each in pipes):
            loaded.append(prober.get())
        took, after = time.monotonic() - began, node.cpu_times()
        said = [each.communicate()[0] for each in pipes]
        found = [re.search(r"errors: (\d+), replies: (\d+)", each) for each in said]
        errors = sum(int(each[1]) for each in found if each)
        replies = sum(int(each[2]) for each in found if each)
        is_led_on = epochs(cluster, login) == before
    ratio = quantile_ms(loaded, 0.99) / quantile_ms(quiet, 0.99)
    cpu_us = (after.user + after.system - cpu.user - cpu.system) / max(replies, 1) * 1e6
    print(f"{replies:,} replies, {errors:,} errors, {replies / took:,.0f}/s, node {cpu_us:.1f} µs")
    print(f"GET: {prober.errors} errors of {len(loaded):,}; masters as before: {is_led_on}")
    for name, times in (("quiet", quiet), ("loaded", loaded)):
        shown = ", ".join(f"p{share * 100:g} {quantile_ms(times, share):.2f}" for share in SHARES)
        print(f"{name}: {shown}, longest {max(times) * 1000:.1f} ms")
    print(f"p99 loaded / quiet: {ratio:.1f}, to reach: ≤ {P99_RATIO_MAX:g}")
    is_well = not errors and not prober.errors and is_led_on and replies == CLIENTS * commands
    return 0 if is_well and ratio <= P99_RATIO_MAX else 1


SHARES = (0.5, 0.99, 0.999)

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else COMMANDS))
