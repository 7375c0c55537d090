"""What `log` and `cluster` say before a cluster is there, and how records and progress look."""

import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kits.running import run

from raftwood.cli.cluster import show, what_is_left
from raftwood.cli.cluster_target import shard_of
from raftwood.cli.command_line import run as raftwood
from raftwood.cli.input import line_batches
from raftwood.cli.output import size_text
from raftwood.logservice.errors import RecordTooLarge
from raftwood.logservice.hakeeper.commands import (
    ClusterView,
    KeeperShardView,
    ServiceView,
    StoreView,
    TnShardView,
)
from raftwood.logservice.hakeeper.messages import Alarm, AlarmKind, Order, OrderKind, ServiceKind
from raftwood.logservice.hakeeper.state import ClusterPhase, FailedOrder


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAFTWOOD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _secrets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert raftwood(["config", "secret"]) == 0
    Path("cluster.toml").write_text(capsys.readouterr().out)
    monkeypatch.setenv("RAFTWOOD_CONFIG", "cluster.toml")


@pytest.fixture
def taken_address() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def failure(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert raftwood([*arguments]) == status
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    return errors.splitlines()[-1]


@pytest.mark.parametrize(
    "command",
    [
        ("log", "list"),
        ("log", "create", "a"),
        ("log", "read", "a"),
        ("log", "append", "a", "x"),
        ("log", "restore", "folder", "a"),
        ("cluster", "status"),
        ("cluster", "drain", "1"),
        ("cluster", "forget", "1"),
    ],
)
@pytest.mark.usefixtures("_secrets")
def test_a_command_says_what_it_lacks(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], taken_address: str
) -> None:
    assert "--connect HOST:PORT" in failure(capsys, 2, *command)
    assert "no store answers" in failure(capsys, 1, *command, "--connect", taken_address)
    assert "is no address" in failure(capsys, 2, *command, "--connect", "nowhere")


def test_a_command_names_the_secret_that_it_needs(
    capsys: pytest.CaptureFixture[str], taken_address: str
) -> None:
    near = ("--connect", taken_address)
    assert "secrets.clients is not set" in failure(capsys, 2, "log", "read", "a", *near)
    assert "secrets.readers is not set" in failure(
        capsys, 2, "log", "read", "a", "--read-only", *near
    )
    assert "secrets.operators is not set" in failure(capsys, 2, "cluster", "status", *near)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("log", "read", "a", "--count", "0"), "--count 0 shows nothing"),
        (("log", "read", "a", "--bytes", "-1"), "--bytes -1 shows nothing"),
        (("log", "tail", "a", "--count", "0"), "--count 0 shows nothing"),
        (("log", "append", "a", "x", "--file", "y"), "not both"),
        (("log", "append", "a", "--fiel", "y"), "unknown option --fiel"),
        (("log", "restore", "folder", "12"), "taken for shard 12"),
        (("log", "read"), "shard"),
    ],
)
def test_a_request_that_cannot_be_is_refused_at_once(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in failure(capsys, 2, *arguments).replace("SHARD", "shard")


def test_a_shard_is_a_number_or_a_name() -> None:
    assert [shard_of(text) for text in ("7", "orders", "7a", "٧")] == [7, "orders", "7a", "٧"]


def test_lines_come_in_batches_from_files_and_pipes(tmp_path: Path) -> None:
    async def lines_of(source: int, most: int = 100) -> list[bytes]:
        return [line async for batch in line_batches(source, line_bytes_max=most) for line in batch]

    text = b"one\n\ntwo\nlast"
    (tmp_path / "file").write_bytes(text)
    file = os.open(tmp_path / "file", os.O_RDONLY)
    reading, writing = os.pipe()
    try:
        assert run(lines_of(file)) == [b"one", b"", b"two", b"last"]
        os.write(writing, text)
        os.close(writing)
        assert run(lines_of(reading)) == [b"one", b"", b"two", b"last"]
        os.lseek(file, 0, os.SEEK_SET)
        with pytest.raises(RecordTooLarge, match="above 3 bytes"):
            run(lines_of(file, 3))
    finally:
        os.close(file)
        os.close(reading)


def test_progress_is_told_on_a_terminal_alone() -> None:
    script = """
import sys, time
from raftwood.cli.output import StatusLine
with StatusLine("begins") as progress:
    progress.say("half done")
    time.sleep(0.3)
sys.stdout.write("end")
"""
    leader, follower = pty.openpty()
    try:
        command = (sys.executable, "-c", script)
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=follower, timeout=60, check=True
        )
        assert b"half done" in os.read(leader, 65536)
        assert ended.stdout == b"end"
    finally:
        os.close(leader)
        os.close(follower)
    quiet = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert (quiet.stdout, quiet.stderr) == (b"end", b"")


def test_a_store_is_empty_when_it_is_no_member_and_has_no_replica() -> None:
    def view(voters: tuple[int, ...], replicas: int) -> ClusterView:
        store = StoreView(1, "", "", "", True, True, 0, replicas, 0, 0, 0)
        shard = KeeperShardView(4, "a", 1, 0, voters, (), {}, 0, 0, 0, {})
        return ClusterView(ClusterPhase.RUNNING, "", 1, 1, (store,), (shard,), (), (), (), (), ())

    assert what_is_left(view((1, 2), 1), 1) == "replicas of shards [4]"
    assert what_is_left(view((2,), 1), 1) == "1 replicas to remove"
    assert what_is_left(view((2,), 0), 1) == ""


FAILED_CLUSTER = ClusterView(
    ClusterPhase.BOOTSTRAP_FAILED,
    "stores [3] have never reported",
    100,
    4,
    (
        StoreView(1, "a:1", "rack", "0.1", True, False, 1, 2, 1, 1 << 40, 1 << 30),
        StoreView(2, "b:1", "", "0.1", True, True, 1, 2, 1, 1 << 40, 1 << 30),
        StoreView(3, "c:1", "", "0.1", False, True, 90, 0, 0, 0, 0),
    ),
    (KeeperShardView(1, "log-1", 3, 1, (1, 2), (3,), {}, 0, 4, 9, {2: 17}, 3 << 20),),
    (ServiceView("tn-1", ServiceKind.TN, "d:1", {"zone": "x"}, False, 50),),
    (TnShardView(8, 1, "tn-1", 12),),
    (
        Alarm(AlarmKind.BOOTSTRAP_FAILED, "stores [3] have never reported"),
        Alarm(AlarmKind.LEADERLESS, "no leader", 1, 2),
    ),
    (
        Order(5, OrderKind.BOOTSTRAP_SHARD, to_store=3, shard=1, members={1: "a:1"}),
        Order(6, OrderKind.SHUTDOWN_SERVICE, to_service="tn-1"),
    ),
    (FailedOrder(90, OrderKind.ADD_LEARNER, "store 1", 1, "it took too long"),),
)


def test_a_cluster_is_shown_whole_for_people_and_for_machines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show(FAILED_CLUSTER, "text")
    text, errors = capsys.readouterr()
    assert errors == "error: the cluster could not be set up: stores [3] have never reported\n"
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "the cluster is bootstrap-failed: stores [3] have never reported",
        "1 a:1 up rack 2 1 1 GiB of 1 TiB 0.1",
        "2 b:1 draining 2 1 1 GiB of 1 TiB 0.1",
        "3 c:1 down 0 0 0 B of 0 B 0.1",
        "1 log-1 - 1, 2 3 3+1 2: 17 3 MiB",
        "tn-1 tn d:1 down",
        "8 1 tn-1 12",
        "leaderless 2 1 no leader",
        "5 bootstrap-shard store 3 1 0",
        "6 shutdown-service tn-1 0 0",
        "add-learner store 1 1 it took too long",
    ):
        assert line in lines
    show(FAILED_CLUSTER, "json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["phase"] == "bootstrap-failed"
    assert shown["shards"][0]["lagging"] == {"2": 17}
    assert [alarm["kind"] for alarm in shown["alarms"]] == ["bootstrap-failed", "leaderless"]
    assert [order["target"] for order in shown["orders"]] == ["store 3", "tn-1"]


def test_a_member_that_does_not_answer_the_leader_is_shown_as_unknown_and_not_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shard = KeeperShardView(1, "log-1", 3, 1, (1, 2, 3), (4,), {}, 2, 4, 9, {3: 0}, 3 << 20)
    show(ClusterView(ClusterPhase.RUNNING, "", 1, 1, (), (shard,), (), (), (), (), ()), "json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["shards"][0]["lagging"] == {"1": None, "3": 0, "4": None}


def test_sizes_are_told_as_people_read_them() -> None:
    sizes = (0, 999, 1023, 1024, 1536, 1 << 20, 79257792512, 5 << 50)
    assert [size_text(size) for size in sizes] == [
        "0 B",
        "999 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "1 MiB",
        "73.8 GiB",
        "5120 TiB",
    ]
