"""The table and the user that whoever starts a cluster on this machine finds."""

import asyncio
from pathlib import Path

import pytest
from tests.kits.server.kv_cluster import Cluster
from tests.kits.zeppelin.meta.group_in_memory import GROUP
from tests.kits.zeppelin.meta.tables import A, B, registered

from raftwood.base.errors import DeadlineExceeded
from raftwood.cli.standalone import tell_parts
from raftwood.disk.real_environment import real_environment
from raftwood.server import standalone
from raftwood.server.parts import KvPart, LogHubPart, LogServicePart, Parts, new_user
from raftwood.server.standalone import default_part
from raftwood.zeppelin.meta.changes import DropTable, NodeDown
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.passwords import is_password


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.change(registered(A), registered(B))
    return cluster


def part_of(cluster: Cluster, folder: Path) -> KvPart:
    async def ask() -> KvPart:
        meta = MetaClient(cluster, GROUP)
        with real_environment() as environment:
            return await default_part(environment, str(folder), meta, nodes=2, address="h:7")

    return asyncio.run(ask())


def test_it_is_made_once_and_its_password_is_kept(cluster: Cluster, tmp_path: Path) -> None:
    first = part_of(cluster, tmp_path)
    topology = cluster.machine.topology
    assert (first.host, first.port, first.user) == ("h", 7, "default")
    assert is_password(first.password.encode(), topology.users["default"].password_hash)
    config = topology.tables["default"].config
    assert (config.replicas, config.on_meta_loss) == (2, "stop")
    assert (tmp_path / standalone.LOGIN_FILE).stat().st_mode & 0o077 == 0
    assert part_of(cluster, tmp_path) == first
    assert cluster.machine.topology is topology


def test_a_table_that_was_dropped_is_made_anew(cluster: Cluster, tmp_path: Path) -> None:
    part_of(cluster, tmp_path)
    cluster.change(DropTable("default"))
    second = part_of(cluster, tmp_path)
    user = cluster.machine.topology.users["default"]
    assert is_password(second.password.encode(), user.password_hash)


def test_a_password_that_is_not_known_here_is_changed(cluster: Cluster, tmp_path: Path) -> None:
    first = part_of(cluster, tmp_path)

    async def change() -> None:
        with real_environment() as environment:
            user, _ = new_user(environment, "default", "default", may_write=True)
        await MetaClient(cluster, GROUP).set_password("default", user.password_hash)

    asyncio.run(change())
    second = part_of(cluster, tmp_path)
    assert second.password != first.password
    user = cluster.machine.topology.users["default"]
    assert is_password(second.password.encode(), user.password_hash)
    assert part_of(cluster, tmp_path) == second


def test_a_table_that_nobody_serves_is_not_waited_for_in_vain(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part_of(cluster, tmp_path)
    cluster.silent += [A, B]
    cluster.change(NodeDown(A, 1), NodeDown(B, 1))
    cluster.plan()
    monkeypatch.setattr(standalone, "SERVED_S_MAX", 0.05)
    with pytest.raises(DeadlineExceeded, match="raftwood kv status"):
        part_of(cluster, tmp_path)


def test_what_runs_is_shown_with_and_without_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = LogHubPart("http://h:2", "h:1", "id", "hub-secret")
    kv = KvPart(host="h", port=7, user="default", password="kv-password")
    tell_parts("/f", Parts(hub, LogServicePart("h:0", "/f/c"), 1, kv), None)
    printed = capsys.readouterr().out
    assert "h:7" in printed
    assert "hub-secret" not in printed
    assert "kv-password" not in printed
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    tell_parts("/f", Parts(hub, LogServicePart("h:0", "/f/c"), 1, kv), None)
    printed = capsys.readouterr().out
    assert "redis-cli -c -h h -p 7 --pass kv-password" in printed
    assert "hub-secret" in printed
    tell_parts("/f", Parts(hub, LogServicePart("h:0", "/f/c"), 1), None)
    assert "redis" not in capsys.readouterr().out.lower()
