"""Clients of others at work: programs of redis-py, and Redis's own benchmark."""

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from subprocess import Popen
from typing import Any

from raftwood.zeppelin.slots import place_of_slot, slot_of
from tests.kits.zeppelin import redis_py
from tests.kits.zeppelin.processes import KvProcesses, Login
from tests.kits.zeppelin.redis_tools import Tools

ENDS_S_MAX = 60


def tags(partitions: int) -> list[str]:
    """One for each partition, in their order."""
    found: dict[int, str] = {}
    for number in itertools.count():
        slot = slot_of(b"tag%d" % number)
        found.setdefault(place_of_slot(slot, partitions), f"tag{number}")
        if len(found) == partitions:
            return [found[partition] for partition in range(partitions)]
    raise AssertionError


class Loads:
    """Programs of redis-py at work, by name."""

    def __init__(self, programs: dict[str, Popen[str]]) -> None:
        self._programs = programs

    def ended(self) -> dict[str, Any]:
        """What each has seen, and found in the end; all have what was acked."""
        said = {}
        for name, program in self._programs.items():
            output, errors = program.communicate("", timeout=ENDS_S_MAX)
            assert program.returncode == 0, errors
            said[name] = json.loads(output.splitlines()[-1])
            print(f"{name}: {said[name]['acked']} acked, {said[name]['gap_s']:.2f} s without")
        for name, seen in said.items():
            assert seen["acked"] > 0
            assert not seen["lost"], f"{name} lost {seen['lost']}"
            assert not seen["unscanned"], f"{name} does not see {seen['unscanned']}"
            for counter, (acked, count, _) in seen["counts"].items():
                assert acked <= count, f"{name}: {counter} lost increments"
        return said


@contextmanager
def working(
    cluster: KvProcesses, login: Login, phase: str, clients: dict[str, bool]
) -> Iterator[Loads]:
    """Clients by version, with their own retries or without."""
    programs = {}
    partitions = len(cluster.topology().tables[login.table].partitions)
    with ExitStack() as stack:
        for version, has_retries in clients.items():
            name = f"redis-py {version}"
            given = {
                "name": f"{phase}-{version}",
                "ports": [cluster.ports[node.name][0] for node in cluster.nodes.values()],
                "user": login.user,
                "password": login.password,
                "tags": tags(partitions),
                "has_retries": has_retries,
            }
            program = stack.enter_context(redis_py.start(version, "redis_py_load", given))
            stack.callback(program.kill)
            programs[name] = program
        for program in programs.values():
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
        yield Loads(programs)


@contextmanager
def benchmarking(tools: Tools) -> Iterator[Popen[str]]:
    """Redis's benchmark as a load; it ends with the first connection that does, with Redis too."""
    words = ("--cluster", "-t", "incr", "-n", "1000000", "-c", "3")
    with tools.start("redis-benchmark", *words) as benchmark:
        try:
            yield benchmark
        finally:
            benchmark.kill()
