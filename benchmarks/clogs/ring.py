"""Look-ups in clogs' ring, and rebuilding it, beside uhashring, a ketama ring in Python.

    python -m benchmarks.run --parts clogs-ring

Ours and the other take turns and the medians count; seconds are those of the processor, of which
all of it needs one and nothing else. uhashring computes in double precision, and has no look-ups by
the batch; to build its ring takes so long that only small ones are measured.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import rich.table
from tests.kits.install import python as python_libraries
from tests.kits.install.cache import NotInstalled

from benchmarks.harness.report import Verdict, goals_table, table
from raftwood.clogs import ring as ring_module
from raftwood.clogs.configuration import LogServer
from raftwood.clogs.ring import Ring

UHASHRING: Final = "uhashring==2.5"
LOOKED_UP: Final = (3, 25, 1000)
REBUILT: Final = (80, 1000)
UHASHRING_SERVERS_MAX: Final = 100
BATCH_GOAL_MILLIONS: Final = 1.0


class Results(msgspec.Struct, kw_only=True):
    """Medians, by the number of servers."""

    keys: int
    by_batch: dict[int, float] = {}
    """Look-ups per second of CPU."""
    one_by_one: dict[int, float] = {}
    of_peer: dict[int, float] = {}
    built_ms: dict[int, float] = {}
    """Of servers that are all new."""
    without_one_ms: dict[int, float] = {}
    peer_built_ms: dict[int, float] = {}
    peer_without_one_ms: dict[int, float] = {}
    missing: str = ""
    """Why uhashring is not there."""


def compare(
    *, quick: bool = False, progress: Callable[[str], None] = lambda _step: None
) -> Results:
    keys = [f"/var/log/shop{number % 97}/app{number}.log" for number in range(100_000)]
    rounds = 2 if quick else 5
    results = Results(keys=len(keys))
    peer = _peer(results)
    for count in LOOKED_UP:
        progress(f"look-ups among {count} servers")
        _look_up(results, count, keys, rounds, peer)
    for count in REBUILT:
        progress(f"{count} servers, and then one less")
        _rebuild(results, count, rounds, peer)
    return results


def _peer(results: Results) -> Any:
    """The class of uhashring's ring."""
    try:
        sys.path.insert(0, str(python_libraries.install("uhashring", UHASHRING)))
    except NotInstalled as error:
        results.missing = str(error)
        return None
    from uhashring import HashRing  # type: ignore[import-not-found]  # noqa: PLC0415

    return HashRing


def _servers(count: int) -> list[LogServer]:
    return [
        LogServer(host=f"10.0.{number // 250}.{number % 250}", port=7290) for number in range(count)
    ]


def _look_up(results: Results, count: int, keys: list[str], rounds: int, peer: Any) -> None:
    ring = Ring(_servers(count))
    ring.servers_of(keys)
    few = keys[: len(keys) // 5]
    of_peer = None
    if peer is not None and count <= UHASHRING_SERVERS_MAX:
        of_peer = peer(nodes=[each.ring_name for each in ring.servers], hash_fn="ketama")
    taken: dict[str, list[float]] = {"batch": [], "one": [], "peer": []}
    for _ in range(rounds):
        taken["batch"].append(len(keys) / _seconds(lambda: ring.servers_of(keys)))
        taken["one"].append(len(few) / _seconds(lambda: list(map(ring.server_of, few))))
        if of_peer is not None:
            look_up = of_peer.get_node
            taken["peer"].append(len(few) / _seconds(lambda: list(map(look_up, few))))  # noqa: B023
    results.by_batch[count] = statistics.median(taken["batch"])
    results.one_by_one[count] = statistics.median(taken["one"])
    if taken["peer"]:
        results.of_peer[count] = statistics.median(taken["peer"])


def _rebuild(results: Results, count: int, rounds: int, peer: Any) -> None:
    servers = _servers(count)
    built, without_one = [], []
    for _ in range(rounds):
        ring_module._points_of.cache_clear()
        built.append(_seconds(lambda: Ring(servers)))
        without_one.append(_seconds(lambda: Ring(servers[1:])))
    results.built_ms[count] = statistics.median(built) * 1e3
    results.without_one_ms[count] = statistics.median(without_one) * 1e3
    if peer is not None and count <= UHASHRING_SERVERS_MAX:
        names = [each.ring_name for each in servers]
        made: list[Any] = []
        taken = _seconds(lambda: made.append(peer(nodes=names, hash_fn="ketama")))
        results.peer_built_ms[count] = taken * 1e3
        taken = _seconds(lambda: made[0].remove_node(names[0]))
        results.peer_without_one_ms[count] = taken * 1e3


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def verdicts(results: Results) -> list[Verdict]:
    return [
        Verdict(
            what=f"look-ups by the batch among {count} servers",
            measured=rate / 1e6,
            goal=BATCH_GOAL_MILLIONS,
            unit=" M/s",
            is_least=True,
        )
        for count, rate in results.by_batch.items()
    ]


def tables(results: Results) -> list[rich.table.Table]:
    looked_up = table(
        f"Look-ups per second of CPU in clogs' ring, {results.keys:,} names",
        ["servers", "by the batch", "one by one", "uhashring", "batch / it", "one / it"],
    )
    for count, rate in results.by_batch.items():
        one, its = results.one_by_one[count], results.of_peer.get(count)
        ratios = (
            ("", "", "")
            if its is None
            else (f"{its:,.0f}", f"{rate / its:.1f}×", f"{one / its:.1f}×")
        )
        looked_up.add_row(f"{count:,}", f"{rate:,.0f}", f"{one:,.0f}", *ratios)
    rebuilt = table(
        "Rings made anew, ms of CPU",
        ["servers", "all are new", "one less", "uhashring", "one less, uhashring", "it / ours"],
    )
    for count, built in results.built_ms.items():
        without = results.without_one_ms[count]
        row = [f"{count:,}", f"{built:.1f}", f"{without:.1f}"]
        if count in results.peer_built_ms:
            its = results.peer_without_one_ms[count]
            row += [f"{results.peer_built_ms[count]:.1f}", f"{its:.1f}", f"{its / without:.0f}×"]
        rebuilt.add_row(*row)
    goals = goals_table("clogs' ring: what is to be reached", verdicts(results))
    return [looked_up, rebuilt, goals]


def notes(results: Results) -> list[str]:
    if results.missing:
        return [f"- uhashring: not available: {results.missing}"]
    return [f"- {UHASHRING.replace('==', ' ')} with hash_fn=ketama, in the same process"]
