"""The commands of LogHub's clients, against a gateway over logs in memory."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kits.processes import INTERRUPTIBLE
from tests.kits.server.gateway_thread import GatewayThread

from raftwood.base.errors import InvalidInput
from raftwood.base.position import Position
from raftwood.cli import produce
from raftwood.cli.command_line import run as raftwood
from raftwood.cli.key import roles_of
from raftwood.cli.shard import short_key
from raftwood.cli.tail import Choice, Printer, line_of, value_of
from raftwood.loghub.client.pulled_batches import LogRecord
from raftwood.loghub.client.reader import start_at
from raftwood.loghub.model import KEY_END, AccessRole
from raftwood.server import clients

SECRET = "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAFTWOOD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clients, "CONNECT_MS", 300)


class Commands:
    """Carries out commands, and checks how they end."""

    def __init__(self, gateway: GatewayThread, output: pytest.CaptureFixture[str]) -> None:
        self.gateway = gateway
        self._output = output

    def run(self, *arguments: str, status: int = 0, expect: str = "") -> str:
        self._output.readouterr()
        ended = raftwood([*arguments])
        shown = self._output.readouterr()
        assert ended == status, (arguments, shown)
        assert "Traceback" not in shown.err
        text = shown.err if status else shown.out
        assert expect in text, text
        return text

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run(*arguments, "--format", "json"))
        return rows

    def put(self, lines: str, *arguments: str, status: int = 0, expect: str = "") -> str:
        Path("lines").write_text(lines)
        return self.run(
            "produce", "shop/orders", "--file=lines", *arguments, status=status, expect=expect
        )

    def tail(self, *arguments: str) -> list[str]:
        """The records, without their times."""
        lines = self.run("tail", "shop/orders", *arguments).splitlines()
        return [line.partition("  ")[2] for line in lines]


@pytest.fixture
def commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Commands]:
    with GatewayThread(tmp_path) as gateway:
        monkeypatch.setenv("RAFTWOOD_LOGHUB_CLIENT__GATEWAYS", gateway.address)
        monkeypatch.setenv("RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY", gateway.admin.id)
        monkeypatch.setenv(SECRET, gateway.admin.secret)
        found = Commands(gateway, capfd)
        found.run("project", "create", "shop", expect="shop")
        found.run("logstore", "create", "shop/orders", expect="ttl days")
        yield found


@pytest.fixture
def taken_address() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    "command",
    [
        ("project", "list"),
        ("logstore", "list", "shop"),
        ("shard", "list", "shop/orders"),
        ("group", "list", "shop/orders"),
        ("produce", "shop/orders"),
        ("tail", "shop/orders"),
    ],
)
def test_a_command_says_what_it_lacks(
    command: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    taken_address: str,
) -> None:
    assert raftwood([*command]) == 2
    assert "raftwood key create" in capfd.readouterr().err
    monkeypatch.setenv(SECRET, "s" * 40)
    arguments = [*command, "--access-key", "k", "--gateways", taken_address]
    assert raftwood(arguments) == 1
    assert "no gateway can be reached" in capfd.readouterr().err


@pytest.mark.parametrize("command", [("create", "a=reader"), ("list",), ("revoke", "RW")])
def test_keys_are_made_at_the_stores_by_operators(
    command: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    taken_address: str,
) -> None:
    assert raftwood(["key", *command]) == 2
    assert "secrets.operators is not set" in capfd.readouterr().err
    monkeypatch.setenv("RAFTWOOD_SECRETS__OPERATORS", "s" * 40)
    assert raftwood(["key", *command]) == 2
    assert "--connect HOST:PORT" in capfd.readouterr().err
    assert raftwood(["key", *command, "--connect", taken_address]) == 1
    assert "no store answers" in capfd.readouterr().err


def test_a_key_that_is_not_known_is_named(commands: Commands) -> None:
    commands.run(
        "project", "list", "--access-key=RWNONE", status=1, expect="takes access key RWNONE"
    )


def test_projects_are_made_changed_listed_and_deleted(commands: Commands) -> None:
    commands.run("project", "create", "shop", status=1, expect="exists already")
    commands.run("project", "create", "../x", status=2, expect="not allowed")
    (made,) = commands.rows("project", "create", "web", "--description", "the site")
    assert (made["description"], made["owner"]) == ("the site", commands.gateway.admin.id)
    (changed,) = commands.rows("project", "update", "web", "--write-bytes-per-s-max", "5MiB")
    assert (changed["write_bytes_per_s_max"], changed["description"]) == (5 << 20, "the site")
    commands.run("project", "update", "web", status=2, expect="nothing is to be changed")
    commands.run("project", "update", "web", "--write-bytes-per-s-max=5x", status=2, expect="5x")
    assert [row["name"] for row in commands.rows("project", "list")] == ["shop", "web"]
    assert [row["name"] for row in commands.rows("project", "list", "--contains=e")] == ["web"]
    commands.run("project", "delete", "shop", status=1, expect="delete these first")
    commands.run("project", "delete", "web", expect="web")
    commands.run("project", "show", "web", status=1, expect="no project web")
    assert "made" in commands.run("project", "show", "shop")


def test_logstores_have_options(commands: Commands) -> None:
    (made,) = commands.rows(
        "logstore", "create", "shop/events", "--shards=3", "--ttl-days=7", "--ttl-spares-readers",
        "--retained-bytes-max=1GiB", "--auto-split", "--shards-split-max=9",
        "--enable-tracking", "--append-meta", "--telemetry-type=Metrics",
    )  # fmt: skip
    options = {
        "ttl_days": 7,
        "ttl_spares_readers": True,
        "retained_bytes_max": 1 << 30,
        "auto_split": True,
        "shards_split_max": 9,
        "enable_tracking": True,
        "append_meta": True,
        "telemetry_type": "Metrics",
    }
    assert {name: made[name] for name in options} == options
    assert len(made["shards"]) == 3
    (changed,) = commands.rows("logstore", "update", "shop/events", "--no-auto-split")
    assert (changed["auto_split"], changed["ttl_days"]) == (False, 7)
    commands.run("logstore", "update", "shop/events", status=2, expect="nothing is to be changed")
    commands.run("logstore", "update", "shop/events", "--ttl-days=-1", status=2, expect="TTL")
    names = [row["logstore"] for row in commands.rows("logstore", "list", "shop")]
    assert names == ["events", "orders"]
    assert "1 GiB" in commands.run("logstore", "show", "shop/events")
    commands.run("logstore", "delete", "shop/events", expect="events")
    commands.run("logstore", "show", "shop/events", status=1, expect="no logstore events")
    commands.run("logstore", "show", "shop", status=2, expect="PROJECT/LOGSTORE")


def test_shards_are_listed_split_merged_and_deleted(commands: Commands) -> None:
    commands.put("a\nb\n")
    key = "2" + "0" * 31
    changed = commands.rows("shard", "split", "shop/orders", "0", "--at", key)
    assert [(row["id"], row["status"], row["parents"]) for row in changed] == [
        (0, "readonly", []),
        (2, "readwrite", [0]),
        (3, "readwrite", [0]),
    ]
    assert changed[1]["end"] == changed[2]["begin"] == key
    commands.run("shard", "split", "shop/orders", "0", status=1, expect="0")
    commands.run("shard", "merge", "shop/orders", "2", expect="2, 3")
    listed = commands.rows("shard", "list", "shop/orders")
    assert [row["id"] for row in listed] == [0, 1, 2, 3, 4]
    assert sum(row["appended_bytes"] > 0 for row in listed) == 1
    assert all(int(row["next"]) >= int(row["first"]) for row in listed)
    shown = commands.run("shard", "list", "shop/orders")
    assert "20000000… to 80000000…" in shown
    commands.run("shard", "delete", "shop/orders", "0", expect="deleted shard")
    commands.run("shard", "delete", "shop/orders", "1", status=2, expect="shard 1 is readwrite")
    commands.run("shard", "delete", "shop/orders", "77", status=1, expect="no shard 77")


def test_groups_are_made_listed_looked_at_and_deleted(commands: Commands) -> None:
    commands.put("a\nb\n")
    made = ("billing", "--timeout-seconds=30", "--no-ordered")
    commands.run("group", "create", "shop/orders", *made, expect="billing")
    commands.run("group", "create", "shop/orders", "billing", status=1, expect="exists already")
    (row,) = commands.rows("group", "list", "shop/orders")
    assert row == {"name": "billing", "timeout_s": 30, "is_ordered": False}
    for each in commands.rows("group", "checkpoints", "shop/orders", "billing"):
        assert (each["position"], each["updated"], each["consumer"]) == (None, None, None)
    listed = commands.rows("shard", "list", "shop/orders")
    assert {each["required_by"] for each in listed} <= {"billing", None}
    commands.run("group", "delete", "shop/orders", "billing", expect="deleted group")
    commands.run(
        "group", "checkpoints", "shop/orders", "billing", status=1, expect="no consumer group"
    )


def test_who_may_only_read_cannot_change(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = commands.gateway.reader
    monkeypatch.setenv(SECRET, reader.secret)
    monkeypatch.setenv("RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY", reader.id)
    commands.run("tail", "shop/orders")
    commands.run("project", "create", "x", status=1, expect="in every project")
    commands.run("shard", "split", "shop/orders", "0", status=1, expect="takes the role admin")
    commands.put("a\nb\nc\n", status=1, expect="takes the role writer")
    commands.run("logstore", "list", "other", status=1, expect="no project other")


def test_lines_of_a_file_become_records(commands: Commands) -> None:
    lines = "".join(f"line {number}\n" for number in range(2_000)) + "\nthe last\r\n"
    (row,) = json.loads(commands.put(lines, "--format=json"))
    assert (row["records"], row["failed"]) == (2_002, 0)
    assert row["bytes"] == len(lines) - 2_002
    assert commands.tail("--from", "begin") == [*lines.replace("\r", "").split("\n")[:-1]]
    assert commands.tail("-n", "2") == ["", "the last"]
    assert commands.tail() == [
        *(f"line {number}" for number in range(1_992, 2_000)),
        "",
        "the last",
    ]
    assert commands.tail("-n", "0") == []
    assert commands.tail("--from", "end") == []
    assert commands.tail("--grep", "line 7.0$", "--from=1h")[:2] == ["line 700", "line 710"]
    assert commands.tail("-n1", "--grep", "line 3$") == ["line 3"]
    commands.run("produce", "shop/orders", "--file=none", status=2, expect="cannot be read")
    commands.run("produce", "shop/orders", "--timeout-seconds=0", status=2, expect="more than 0")


def test_json_lines_become_records_and_bad_ones_are_named(commands: Commands) -> None:
    bad = "".join(f"bad {number}\n" for number in range(12))
    good = (
        '{"level":"error","message":"no \\u001b[1m","user":"u1","n":[1,"x y"]}\n\n{"user":"u2"}\n'
    )
    told = commands.put(
        good + bad, "--input=json", "--key=user", "--topic=t", "--source=s", status=1
    )
    assert "error: line 4 cannot be read" in told
    assert "line 13 " in told
    assert "line 14 " not in told
    assert "more lines fail" in told
    assert commands.tail("--where", "user=u1") == ['error  no \\x1b[1m user=u1 n="[1,\\"x y\\"]"']
    fields = ("--fields", "user,__topic__,__source__,__tag__:x,__shard__")
    shown = commands.run("tail", "shop/orders", "--where=user=u2", *fields).split()
    assert shown[:4] == ["u2", "t", "s", "-"]
    (record,) = map(
        json.loads,
        commands.run("tail", "shop/orders", "--format=json", '--where=n=[1,"x y"]').splitlines(),
    )
    assert record["fields"]["message"] == "no \x1b[1m"
    assert (record["topic"], record["source"], record["tags"]) == ("t", "s", {})
    shard = str(record["shard"])
    assert len(commands.tail("--shard", shard)) == len(
        commands.tail("--where", f"__shard__={shard}")
    )
    commands.run("tail", "shop/orders", "--shard=99", status=1, expect="no shard 99")


def test_a_line_that_is_too_long_is_named_and_the_others_are_put(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "LINE_BYTES_MAX", 10)
    long = "x" * 11
    commands.put(f"1\n{long}\n{'y' * 10}\n{long * 3}", status=1, expect="line 4 is above 10 bytes")
    assert commands.tail() == ["1", "y" * 10]


def test_without_standard_input_lines_come_from_a_file(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    commands.run("produce", "shop/orders", status=2, expect="standard input is closed")


def test_a_key_keeps_its_order_across_splits_and_merges(commands: Commands) -> None:
    def put(numbers: range) -> None:
        users = [f'{{"user":"{number % 7}","n":{number}}}' for number in numbers]
        commands.put("\n".join(users), "--input=json", "--key=user")

    put(range(100))
    commands.run("shard", "split", "shop/orders", "0")
    put(range(100, 200))
    commands.run("shard", "merge", "shop/orders", "2")
    commands.run("shard", "split", "shop/orders", "1")
    put(range(200, 300))
    found: dict[int, list[int]] = {}
    fields = ("--from=begin", "--fields=user,n")
    for line in commands.run("tail", "shop/orders", *fields).splitlines():
        user, number = map(int, line.split())
        found.setdefault(user, []).append(number)
    assert found == {user: list(range(user, 300, 7)) for user in range(7)}


def interrupted(work: Callable[[], int], *, after_s: float) -> int:
    """Its exit status, where an interrupt comes meanwhile."""
    timer = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        return work()
    finally:
        timer.cancel()
        timer.join()


def test_an_interrupt_ends_the_reading_and_loses_nothing(
    commands: Commands, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"one\ntwo\nnot whole")
        pipe = f"--file=/dev/fd/{reading}"
        status = interrupted(lambda: raftwood(["produce", "shop/orders", pipe]), after_s=0.7)
    finally:
        os.close(writing)
        os.close(reading)
    assert (status, capfd.readouterr().out.splitlines()[-1].split()[0]) == (130, "2")
    assert commands.tail() == ["one", "two"]


def test_a_tail_that_follows_shows_what_comes_until_it_is_interrupted(commands: Commands) -> None:
    commands.put("first\n")
    command = (*INTERRUPTIBLE, "tail", "shop/orders", "-f")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline().endswith("first\n")
        commands.run("shard", "split", "shop/orders", "0")
        commands.run("shard", "split", "shop/orders", "1")
        commands.put("second\n")
        assert following.stdout.readline().endswith("second\n")
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130


def test_a_tail_ends_where_nobody_reads_it(commands: Commands) -> None:
    commands.put("first\n")
    command = (sys.executable, "-m", "raftwood.cli", "tail", "shop/orders", "-f")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline().endswith("first\n")
        following.stdout.close()
        assert following.wait(10) == 141


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--from=sometime",), "is no place"),
        (("--from=begin", "-n", "3"), "not both"),
        (("-n", "-1"), "give 0 to"),
        (("--grep", "("), "is no pattern"),
        (("--where", "x"), "write NAME=VALUE"),
    ],
)
def test_a_tail_that_cannot_be_is_refused(
    arguments: tuple[str, ...], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert raftwood(["tail", "shop/orders", *arguments]) == 2
    assert text in capfd.readouterr().err


def test_a_place_is_a_time_in_many_ways() -> None:
    def at(text: str) -> object:
        return start_at(text, now_s=1_800_000_000.9)

    assert [at(text) for text in ("begin", "end")] == ["begin", "end"]
    assert at("1790000000") == at("1790000000123") == 1_790_000_000
    assert at("2026-09-21T14:13:20Z") == 1_790_000_000
    assert (at("90s"), at("2h")) == (1_799_999_910, 1_799_992_800)


def test_roles_are_given_by_project() -> None:
    assert roles_of(("a=reader", "*=admin")) == {"a": AccessRole.READER, "*": AccessRole.ADMIN}
    for given in ((), ("a",), ("a=owner",), ("=admin",), ("a=reader", "a=admin")):
        with pytest.raises(InvalidInput):
            roles_of(given)


def test_keys_are_shortened_where_nothing_is_lost() -> None:
    assert short_key(KEY_END) == "ffffffff…"
    assert short_key("80000000" + "0" * 24) == "80000000…"
    assert short_key("8" * 31 + "0") == "8" * 31 + "0"


def record(**contents: str | bytes) -> LogRecord:
    return LogRecord(
        1_790_000_000_123_000_000, {**contents}, b"\xff", "s", {"h": "x"}, 3, Position(9)
    )


def test_records_are_shown_with_what_is_not_text_escaped() -> None:
    shown = line_of(record(message="a\nb\x1b[0m", level="warn", other=b"\xff\xfe", empty=""))
    assert shown == (
        "2026-09-21T14:13:20.123Z",
        "warn",
        'a\\nb\\x1b[0m other=\\xff\\xfe empty=""',
    )
    found = [value_of(record(), f"__{name}__") for name in ("topic", "source", "shard", "position")]
    assert found == ["\\xff", "s", "3", "9"]
    assert (value_of(record(), "__tag__:h"), value_of(record(), "x")) == ("x", None)
    assert Choice(where=(("__tag__:h", "x"),)).takes(record())


def test_lines_are_coloured_by_level_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = record(message="m", level="ERROR")
    Printer([], "text").write([bad])
    assert "\x1b" not in capfd.readouterr().out
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Printer([], "text").write([bad, record(message="m")])
    first, second = capfd.readouterr().out.splitlines()
    assert first.startswith("\x1b[31m")
    assert "\x1b" not in second
    monkeypatch.setenv("NO_COLOR", "1")
    Printer([], "text").write([bad])
    assert "\x1b" not in capfd.readouterr().out
