"""`raftwood kv cluster` with a meta server in memory that carries out what was ordered."""

import io
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from pathlib import Path

import msgspec
import pytest
from tests.kits.dlog.command_kit import Commands
from tests.kits.server.kv_cluster import Cluster
from tests.kits.zeppelin.meta.group_in_memory import GROUP
from tests.kits.zeppelin.meta.plans import difference, masters_of, replicas_of
from tests.kits.zeppelin.meta.tables import registered

from raftwood.cli import cluster_target
from raftwood.cli.command_line import run
from raftwood.cli.kv_overview import MoveBar
from raftwood.zeppelin.meta import manager
from raftwood.zeppelin.meta.changes import CreateTable
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.heartbeats import LeaderMoment, NodeHeartbeat
from raftwood.zeppelin.model import NodeId, TableConfig, Topology

NODES = [NodeId(f"node-{letter}") for letter in "abcdef"]


class WorkingCluster(Cluster):
    """Each time that it is asked something it has gone on for a while, unless it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False

    async def read(self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0) -> bytes:
        answer = await super().read(group, query, timeout_ms=timeout_ms, wait_ms=wait_ms)
        if not self.is_held:
            self.now_ms += 600
            self.plan()
        return answer

    def _heartbeat(self, node: NodeId) -> NodeHeartbeat:
        # Seen just now, as a node that has a lease shows.
        after = LeaderMoment(self.term or 0, self.now_ms)
        return msgspec.structs.replace(super()._heartbeat(node), after=after)

    @property
    def topology(self) -> Topology:
        return self.machine.topology


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WorkingCluster:
    group = WorkingCluster()

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[MetaClient]:
        yield MetaClient(group, GROUP)

    monkeypatch.setattr(cluster_target, "connected_zeppelin", connected)
    monkeypatch.setattr(manager, "_POLL_S", 0.001)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RAFTWOOD_")]:
        monkeypatch.delenv(name)
    group.change(*map(registered, NODES[:3]))
    group.change(CreateTable("t", TableConfig(partitions=8, replicas=2)))
    return group


@pytest.fixture
def kv(cluster: WorkingCluster) -> Commands:
    assert len(cluster.topology.nodes) == 3
    return Commands()


def stop(cluster: WorkingCluster, *nodes: NodeId) -> None:
    cluster.silent += nodes
    for _ in range(4):
        Commands().run("kv", "cluster", "status")
    assert not any(cluster.topology.nodes[each].is_up for each in nodes)


def check_even(topology: Topology) -> None:
    table = topology.tables["t"]
    assert difference(replicas_of(table), topology) <= 1
    assert difference(masters_of(table), topology) <= 1
    assert all(each.master == each.preferred for each in table.partitions)
    assert not any(each.migration for each in table.partitions)


def test_a_cluster_grows_and_shrinks_again(kv: Commands, cluster: WorkingCluster) -> None:
    cluster.change(*map(registered, NODES[3:]))
    shown = kv.run("kv", "cluster", "expand", "--dry-run")
    epoch = cluster.topology.epoch
    assert f"at epoch {epoch}: 7 moves (at least 7 are needed)" in shown
    assert f"give --epoch {epoch}" in shown
    assert kv.json("kv", "cluster", "expand", "--dry-run")["counts"]["moves"] == 7
    assert cluster.topology.epoch == epoch

    assert kv.run("kv", "cluster", "expand", f"--epoch={epoch}").startswith("moved 7 replicas")
    check_even(cluster.topology)
    assert "nothing is to be done" in kv.run("kv", "cluster", "balance")

    kv.run("kv", "cluster", "shrink", *NODES[3:], status=2, expect="give --yes")
    told = kv.run("kv", "cluster", "shrink", "node-d", "node-e:1", "node-f", "--yes")
    assert "node-d, node-e:1, node-f may be stopped now" in told
    check_even(cluster.topology)
    rows = {row["node"]: row for row in kv.json("kv", "cluster", "status")["nodes"]}
    assert (rows["node-d"]["state"], rows["node-d"]["replicas"]) == ("up, draining", 0)
    kv.run("kv", "cluster", "remove-nodes", "node-d", "--yes", status=1, expect="is up")
    stop(cluster, *NODES[3:])
    told = kv.run("kv", "cluster", "remove-nodes", "node-d", "node-e", "node-f", "--yes")
    assert told == "forgot node-d, node-e, node-f\n"
    assert list(cluster.topology.nodes) == NODES[:3]


def test_what_was_ordered_goes_on_and_is_seen(kv: Commands, cluster: WorkingCluster) -> None:
    cluster.change(*map(registered, NODES[3:]))
    cluster.is_held = True
    told = kv.run("kv", "cluster", "expand", "--no-wait")
    order = cluster.topology.epoch
    assert f"ordered 7 moves and 3 changes of masters at epoch {order}" in told
    status = kv.json("kv", "cluster", "status")
    assert (status["counts"]["total"], status["counts"]["done"]) == (7, 0)
    assert {each["order"] for each in status["moving"]} == {order}
    assert kv.run("kv", "cluster", "status").startswith("0 of 7 moved, 7 waiting\n")
    assert "0 of 7 moved, 7 waiting: see" in kv.run("kv", "status")
    # What only waits is planned anew.
    assert kv.json("kv", "cluster", "balance", "--dry-run")["counts"]["moves"] == 7
    cluster.plan()
    kv.run("kv", "cluster", "status")
    cluster.plan()
    status = kv.json("kv", "cluster", "status")
    assert 0 < status["counts"]["steps"]["catching up"] < 7
    assert "catching up" in kv.run("kv", "cluster", "status")
    assert kv.json("kv", "status")["problems"] == []
    kv.run("kv", "cluster", "balance", "--dry-run", status=1, expect="wait until nothing moves")
    cluster.is_held = False
    assert "nothing is to be done" in kv.run("kv", "cluster", "expand", *NODES[3:])
    check_even(cluster.topology)


def test_moves_are_cancelled_one_by_one_or_all(kv: Commands, cluster: WorkingCluster) -> None:
    cluster.change(*map(registered, NODES[3:]))
    before = cluster.topology.tables["t"]
    cluster.is_held = True
    order = kv.json("kv", "cluster", "expand", "--no-wait")["orders"][0]
    first = kv.json("kv", "cluster", "status")["moving"][0]["partition"]
    kv.run("kv", "cluster", "cancel", status=2, expect="say what is to be cancelled")
    kv.run(
        "kv", "cluster", "cancel", f"--plan={order - 1}", status=1, expect="nothing of that moves"
    )
    assert kv.json("kv", "cluster", "cancel", "t", str(first))["count"] == 1
    cluster.plan()
    told = kv.run("kv", "cluster", "cancel", f"--plan={order}")
    assert told.startswith("cancelled what moved of")
    after = cluster.topology.tables["t"]
    assert [each.replicas for each in after.partitions] == [
        each.replicas for each in before.partitions
    ]
    kv.run("kv", "cluster", "cancel", "--all", status=1, expect="nothing of that moves")
    assert kv.run("kv", "cluster", "status").startswith("nothing moves")


def replicas(cluster: WorkingCluster) -> list[NodeId]:
    return list(cluster.topology.tables["t"].partitions[0].replicas)


def test_one_partition_is_changed(kv: Commands, cluster: WorkingCluster) -> None:
    cluster.change(registered(NODES[3]))
    first = cluster.topology.tables["t"].partitions[0]
    master, slave = first.replicas
    at = ("t", "0")
    told = kv.run("kv", "cluster", "migrate", *at, f"--from={slave}", "--to=node-d")
    assert told == "moved 1 replicas, changed 0 masters\n"
    assert replicas(cluster) == [master, NODES[3]]
    kv.run("kv", "cluster", "set-master", *at, "node-d")
    assert replicas(cluster)[0] == NODES[3]
    kv.run("kv", "cluster", "add-slave", *at, slave)
    assert len(replicas(cluster)) == 3
    kv.run("kv", "cluster", "remove-slave", *at, master, status=2, expect="give --yes")
    kv.run("kv", "cluster", "remove-slave", *at, master, "--yes")
    assert sorted(replicas(cluster)) == sorted((NODES[3], slave))
    kv.run("kv", "cluster", "set-master", *at, master, status=1, expect="no replica")
    kv.run("kv", "cluster", "add-slave", "t", "9", "node-d", status=1, expect="no partition 9")


def test_a_dead_node_is_replaced(kv: Commands, cluster: WorkingCluster) -> None:
    cluster.change(registered(NODES[3]))
    stop(cluster, NODES[0])
    told = kv.run("kv", "cluster", "replace-node", "node-a", "node-d")
    assert "node-a may be stopped now, if it is not" in told
    assert not replicas_of(cluster.topology.tables["t"])[NODES[0]]
    check_even(cluster.topology)


def test_a_command_that_is_interrupted_interrupts_nothing(
    kv: Commands, cluster: WorkingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.change(*map(registered, NODES[3:]))
    cluster.is_held = True  # it is not over before it is interrupted
    # A shell's jobs in the background are born deaf to interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(MoveBar, "show", lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        told = kv.run("kv", "cluster", "expand", status=130, expect="it goes on: see")
    finally:
        signal.signal(signal.SIGINT, before)
    assert "error: interrupted" in told
    monkeypatch.undo()
    assert any(each.migration for each in cluster.topology.tables["t"].partitions)


def test_a_node_that_something_moves_to_and_that_is_down_is_a_problem(
    kv: Commands, cluster: WorkingCluster
) -> None:
    cluster.change(registered(NODES[3]))
    cluster.is_held = True
    kv.run("kv", "cluster", "expand", "--no-wait")
    cluster.lags[NODES[3]] = 1 << 30
    cluster.is_held = False
    while kv.json("kv", "cluster", "status")["counts"]["steps"]["catching up"] == 0:
        pass
    stop(cluster, NODES[3])
    with redirect_stdout(io.StringIO()) as output:
        assert run(["kv", "status"]) == 1
    assert "replicas move to node node-d, which is down: start it, or see" in output.getvalue()
    assert "(the target is down)" in kv.run("kv", "cluster", "status")
    kv.run("kv", "cluster", "balance", status=1, expect="goes to node-d, which is down")
    kv.run("kv", "cluster", "cancel", "--all")
    assert not kv.json("kv", "cluster", "balance", "--dry-run")["moves"]


def test_a_node_is_emptied_and_may_have_something_again(
    kv: Commands, cluster: WorkingCluster
) -> None:
    kv.run("kv", "cluster", "drain", "node-c")
    assert "up, draining" in kv.run("kv", "status")
    assert not replicas_of(cluster.topology.tables["t"])[NODES[2]]
    kv.run("kv", "cluster", "expand", "node-c", status=1, expect="drain --undo")
    kv.run("kv", "cluster", "drain", "--undo", "node-c")
    kv.run("kv", "cluster", "expand")
    check_even(cluster.topology)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("drain",), 2, "no node is named"),
        (("drain", "node-"), 2, "could be any of 3 nodes (node-a, node-b, node-c)"),
        (("drain", "x"), 1, "`raftwood kv node list`"),
        (("drain", "node-a", "node-b"), 1, "1 nodes could have them"),
        (("balance", "--table=x"), 1, "no table 'x'"),
        (("balance", "--epoch=7"), 1, "has changed since epoch 7"),
        (("expand",), 2, "less than half"),
        (("replace-node", "node-a", "node-a"), 2, "cannot replace itself"),
        (("migrate", "t", "0", "--from=node-a", "--to=node-a"), 1, "already"),
        (("double", "x", "--yes"), 1, "no table 'x'"),
    ],
)
def test_what_cannot_be_is_refused(
    kv: Commands, arguments: tuple[str, ...], status: int, text: str
) -> None:
    kv.run("kv", "cluster", *arguments, status=status, expect=text)


def test_a_table_is_doubled(kv: Commands, cluster: WorkingCluster) -> None:
    kv.run("kv", "cluster", "double", "t", status=2, expect="give --yes")
    assert kv.json("kv", "cluster", "double", "t", "--dry-run")["counts"]["changes"] == 1
    cluster.is_held = True
    kv.run("kv", "cluster", "double", "t", "--yes", "--no-wait")
    assert "table t doubles: 8 of 16 partitions" in kv.run("kv", "cluster", "status")
    kv.run("kv", "cluster", "balance", status=1, expect="table 't' doubles")
    cluster.is_held = False
    told = kv.run("kv", "cluster", "double", "t")
    assert "table t has all its partitions" in told
    assert len(cluster.topology.tables["t"].partitions) == 16
