"""Logs of ledgers from the command line, on the bookies of a `raftwood standalone`."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftwood.app.standalone import PORTS
from raftwood.loghub.model import LogKind
from raftwood.loghub.server.streams import StreamLimits
from tests.cluster.test_standalone import connected, consecutive_ports, running
from tests.kits.dlog.command_kit import Commands
from tests.kits.processes import RAFTWOOD


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("standalone")
    given = (f"--data={folder / 'data'}", f"--port-base={consecutive_ports(PORTS)}")
    with running("standalone", *given, folder=folder) as served:
        yield served


@pytest.fixture(scope="module")
def commands(parts: dict[str, Any]) -> Commands:
    service = parts["logservice"]
    return Commands(f"--connect={service['address']}", f"--config={service['config']}")


def test_a_log_is_made_written_read_rotated_and_shrunk(commands: Commands) -> None:
    made = commands.json("dlog", "create", "audit")
    assert (made["log"], made["state"], made["ledgers"]) == ("audit", "open", [])
    assert (made["ensemble"], made["write_quorum"], made["ack_quorum"]) == (3, 3, 2)
    commands.run("dlog", "create", "audit", status=1, expect="there is a log 'audit' already")
    commands.run("dlog", "create", "audit/2")
    assert [row["log"] for row in commands.json("dlog", "list")] == ["audit", "audit/2"]
    assert commands.json("dlog", "list", "--prefix=audit/") == [{"log": "audit/2"}]

    first = commands.append("audit", "in", "höher", "-")
    later = commands.append("audit", "out")
    assert commands.messages("audit") == ["in", "höher", "-", "out"]
    assert commands.messages("audit", "--from", first[1], "--count=2") == ["höher", "-"]
    assert commands.run("dlog", "read", "audit", "--from", later[0]) == f"{later[0]}  out\n"
    (row,) = commands.json("dlog", "append", "audit", "last")
    assert commands.messages("audit", "--from", row["position"]) == ["last"]

    rotated = commands.json("dlog", "rotate", "audit")
    ledgers = [each["ledger"] for each in rotated["ledgers"]]
    assert all(each["state"] == "closed" for each in rotated["ledgers"])
    assert rotated["takeovers"] == 4
    shrunk = commands.json("dlog", "shrink", "audit", "--before", later[0])
    assert [each["ledger"] for each in shrunk["ledgers"]] == ledgers[1:]
    assert shrunk["first"] == later[0]
    assert later[0] in commands.run("dlog", "info", "audit")
    assert commands.messages("audit") == ["out", "last"]
    commands.run("dlog", "read", "audit", "--from", first[0], status=2, expect="was freed")

    largest = "x" * StreamLimits().stored_bytes_max
    (at,) = commands.append("audit", largest)
    assert commands.messages("audit", "--from", at) == [largest]


def test_closed_ledgers_are_offloaded_to_a_folder(commands: Commands, tmp_path: Path) -> None:
    commands.run("dlog", "create", "moved")
    for number in range(4):
        commands.append("moved", f"message {number}")
    commands.run("dlog", "offload", "moved", status=2, expect="set dlog.offload")
    there = f"--set=dlog.offload={tmp_path}"
    moved = [row["ledger"] for row in commands.json("dlog", "offload", "moved", there)]
    assert len(list(tmp_path.rglob("*.dlof"))) == len(moved) == 2
    shown = commands.json("dlog", "info", "moved", there)["ledgers"]
    assert [row["state"] for row in shown] == ["offloaded", "offloaded", "closed", "closed"]
    listed = {row["ledger"] for row in commands.json("ledger", "list")}
    assert not listed & set(moved)
    assert commands.messages("moved", there) == [f"message {number}" for number in range(4)]
    commands.run("dlog", "read", "moved", status=2, expect="set dlog.offload")


def test_a_writer_that_was_killed_leaves_a_ledger_that_is_recovered(commands: Commands) -> None:
    commands.run("dlog", "create", "killed")
    with subprocess.Popen(
        (*RAFTWOOD, "dlog", "append", "killed", *commands.flags), stdin=subprocess.PIPE
    ) as writer:
        assert writer.stdin is not None
        writer.stdin.write(b"one\ntwo\n")
        writer.stdin.flush()
        shown = commands.run("dlog", "tail", "killed", "--from=0", "--count=2", "--format=json")
        assert [json.loads(line)["data"] for line in shown.splitlines()] == ["one", "two"]
        writer.kill()
    ledger = str(commands.json("dlog", "info", "killed")["ledgers"][-1]["ledger"])
    before = commands.json("ledger", "show", ledger)
    assert (before["state"], before["last_entry"]) == ("open", None)
    recovered = commands.json("ledger", "recover", ledger)
    assert recovered["state"] == "closed"
    assert recovered["last_entry"] >= 0
    assert commands.json("ledger", "show", ledger) == recovered
    assert "closed" in commands.run("ledger", "recover", ledger)
    assert commands.messages("killed") == ["one", "two"]
    commands.append("killed", "three")
    assert commands.messages("killed") == ["one", "two", "three"]


def test_fencing_tells_the_interruption_and_leaves_no_ledger_behind(commands: Commands) -> None:
    commands.run("dlog", "create", "fenced")
    before = {row["ledger"] for row in commands.json("ledger", "list")}
    commands.append("fenced", "one")
    (row,) = commands.json("dlog", "fence", "fenced")
    assert row["log"] == "fenced"
    assert row["interruption_ms"] >= row["fence_ms"] >= 0
    assert "interruption in ms" in commands.run("dlog", "fence", "fenced")
    of_log = [each["ledger"] for each in commands.json("dlog", "info", "fenced")["ledgers"]]
    rows = commands.json("ledger", "list", f"--from={min(of_log)}")
    assert [row["ledger"] for row in rows if row["ledger"] not in before] == of_log
    assert {row["state"] for row in rows if row["ledger"] in of_log} == {"closed"}
    assert len(commands.json("ledger", "list", "--count=1")) == 1


def test_a_gateway_hears_that_its_log_was_taken_over(
    parts: dict[str, Any], commands: Commands
) -> None:
    def owned() -> list[str]:
        rows = commands.json("meta", "list", "dlog/owners/")
        return [row["key"].removeprefix("dlog/owners/") for row in rows]

    with connected(parts) as client:
        client.create_project("p")
        client.create_logstore("p", "s", shard_count=1, log=LogKind.DLOG)
        with client.producer("p", "s") as producer:
            producer.send({"message": "before"})
        (log,) = owned()
        commands.run("dlog", "fence", log)
        assert owned() == []
        with client.producer("p", "s") as producer:
            producer.send({"message": "after"})
        assert owned() == [log]
        with client.reader("p", "s") as reader:
            assert [record.contents["message"] for record in reader] == ["before", "after"]


def test_what_cannot_be_done_is_said(commands: Commands) -> None:
    for words in (
        ("append", "nothing", "x"),
        ("read", "nothing"),
        ("tail", "nothing"),
        ("info", "nothing"),
        ("rotate", "nothing"),
        ("fence", "nothing"),
        ("shrink", "nothing", "--before=1:0"),
    ):
        commands.run("dlog", *words, status=1, expect="log 'nothing'")
    commands.run("dlog", "create", "errors")
    commands.append("errors", "one")
    commands.run("dlog", "create", "a b", status=2, expect="is not allowed")
    commands.run("dlog", "read", "errors", "--from=1:x", status=2, expect="LEDGER:ENTRY")
    commands.run("dlog", "read", "errors", "--from=x", status=2, expect="decimal number")
    commands.run("dlog", "read", "errors", "--from=99999:0", status=2, expect="there is nothing at")
    commands.run("dlog", "tail", "errors", "--from=99999:0", status=2, expect="behind its end")
    commands.run("dlog", "shrink", "errors", "--before=99999:0", status=2, expect="behind its end")
    commands.run("dlog", "read", "errors", "--count=0", status=2, expect="give 1 or more")
    commands.run("dlog", "append", "errors", "--fil", status=2, expect="unknown option --fil")
    for verb in ("show", "recover"):
        commands.run("ledger", verb, "99999", status=1, expect="there is no ledger 99999")
    commands.run("dlog", "list", "--bookkeeper=127.0.0.1:1", status=2, expect="not both")
