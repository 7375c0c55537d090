"""Clients of others at work, as they come, while replicas move, nodes join and leave, and the meta
server's leader dies: no command fails, no write is lost or done twice.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raftwood.zeppelin.model import TableConfig
from tests.kits.zeppelin.moves import Step, Watch, step_of, watching
from tests.kits.zeppelin.processes import KvProcesses, kv_processes
from tests.kits.zeppelin.redis_loads import benchmarking, tags, working
from tests.kits.zeppelin.redis_tools import Tools

pytestmark = pytest.mark.needs("redis_clients", "redis_tools")

TABLE = TableConfig(partitions=6, replicas=2, min_replicas=2)
PATIENT = {"zeppelin_meta.lease_ms": 12_000, "zeppelin_meta.down_ms": 15_000}
"""Masters keep their leases while the stores elect a meta leader, however busy the machine is.

A store that was killed asks the others before it votes; if the next leader dies meanwhile, an
election takes seconds.
"""
STEPS = (Step.REGISTERED, Step.CATCHING_UP, Step.FROZEN, Step.HANDED_OVER)
WAIT_S_LIMIT = 30.0
"""The longest that a command may take, on a busy machine."""


class Story:
    """What happens to the cluster, and when."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.chapters: dict[str, tuple[float, float]] = {}

    @contextmanager
    def chapter(self, name: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self.chapters[name] = (began_s, time.monotonic())


def test_clients_do_not_notice_that_partitions_move(tmp_path: Path) -> None:
    with kv_processes(tmp_path, stores=3, settings=PATIENT) as cluster:
        login = cluster.create_table("orders", TABLE)
        tools = Tools(cluster.ports["node-1"][0], login.user, login.password)
        with watching(cluster) as watch:
            story = Story(watch)
            with working(cluster, login, "moved", {"5": True, "8": True}) as loads:
                with benchmarking(tools) as benchmark:
                    with story.chapter("moves"):
                        masters_and_slaves_move(watch)
                    with story.chapter("the meta leader dies"):
                        the_meta_leader_dies_at_each_step(cluster, watch)
                    assert benchmark.poll() is None, "redis-benchmark has ended"
                with story.chapter("a node joins and leaves"):
                    a_node_joins_and_leaves(cluster, watch)
                said = loads.ended()
        assert "[OK] All 16384 slots covered." in tools.cluster("check")
        cluster.wait_equal("orders")
        check(story, said)


def masters_and_slaves_move(watch: Watch) -> None:
    moves = [watch.planned("orders", number, is_master=number % 2 == 0) for number in range(4)]
    for moved in moves:
        watch.order(moved)
    watch.check_moved(*moves)


def the_meta_leader_dies_at_each_step(cluster: KvProcesses, watch: Watch) -> None:
    for number, step in enumerate(STEPS):
        leader = cluster.stores[cluster.meta_leader()]
        moved = watch.kill_in(step, "orders", number, lambda _, leader=leader: leader)  # type: ignore[misc]
        watch.check_moved(moved)
        leader.start()


def a_node_joins_and_leaves(cluster: KvProcesses, watch: Watch) -> None:
    """A migration to it is cancelled first; then it gets its share, and is emptied again.

    redis-benchmark is not there: it ends when a node becomes master that it has not met at its
    start.
    """
    number = cluster.add_node()
    joined = cluster.nodes[number].id
    before = watch.partition("orders", 0)
    cluster.nodes[number].pause()
    watch.order(watch.planned("orders", 0, target=joined))
    watch.wait(lambda _: step_of(watch.partition("orders", 0)) is Step.CATCHING_UP)
    cluster.ask(lambda meta: meta.cancel_migration("orders", 0))
    cluster.nodes[number].resume()
    watch.wait_at_rest("orders")
    assert watch.partition("orders", 0).replicas == before.replicas
    watch.wait(lambda topology: topology.nodes[joined].is_up)
    cluster.run("kv", "cluster", "expand", joined)
    masters = Counter(each.master for each in cluster.topology().tables["orders"].partitions)
    assert sorted(masters.values()) == [1, 1, 2, 2]
    cluster.run("kv", "cluster", "shrink", joined, "--yes")
    watch.wait_at_rest("orders")
    assert joined not in {
        node for each in cluster.topology().tables["orders"].partitions for node in each.replicas
    }
    cluster.remove_nodes([number])


def check(story: Story, said: dict[str, Any]) -> None:
    freezes = story.watch.freezes("orders")
    for number, each in freezes.items():
        lengths = ", ".join(f"{(end_s - begin_s) * 1000:.0f} ms" for begin_s, end_s in each)
        print(f"partition {number} was frozen for {lengths or 'no time'}")
    for chapter, (began_s, ended_s) in story.chapters.items():
        print(f"{chapter}: {ended_s - began_s:.1f} s")
    assert any(freezes.values())
    for name, seen in said.items():
        assert not seen["errors"], f"{name} saw {seen['errors']}, {story.chapters}"
        for acked, count, sent in seen["counts"].values():
            assert acked == count == sent
        for chapter, (began_s, ended_s) in story.chapters.items():
            calls = [call for each in seen["calls"].values() for call in each]
            took = sorted(took for at, took in calls if began_s <= at <= ended_s)
            print(f"{name}, {chapter}: {len(took)} calls, {quantiles(took)}")
            assert took[-1] < WAIT_S_LIMIT
        frozen = sorted(
            took
            for tag, each in zip(tags(TABLE.partitions), freezes.values(), strict=True)
            for at, took in seen["calls"][tag]
            if any(begin_s - took <= at <= end_s for begin_s, end_s in each)
        )
        print(f"{name}, at frozen partitions: {len(frozen)} calls, {quantiles(frozen)}")


def quantiles(took: list[float]) -> str:
    if not took:
        return "none"
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    return f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, longest {took[-1] * 1000:.0f} ms"
