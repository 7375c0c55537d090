"""Logs of ledgers from the command line, on the bookies of a `raftwood standalone`."""

import json
import subprocess
from pathlib import Path
from typing import Any

from raftwood.loghub.model import LogKind
from raftwood.loghub.server.streams import StreamLimits
from tests.kits.dlog.command_kit import Commands
from tests.kits.processes import RAFTWOOD
from tests.kits.server.running import connected


def test_a_log_is_made_written_read_rotated_and_shrunk(operator: Commands) -> None:
    made = operator.json("dlog", "create", "audit")
    assert (made["log"], made["state"], made["ledgers"]) == ("audit", "open", [])
    assert (made["ensemble"], made["write_quorum"], made["ack_quorum"]) == (3, 3, 2)
    operator.run("dlog", "create", "audit", status=1, expect="there is a log 'audit' already")
    operator.run("dlog", "create", "audit/2")
    assert [row["log"] for row in operator.json("dlog", "list", "--prefix=audit")] == [
        "audit",
        "audit/2",
    ]
    assert operator.json("dlog", "list", "--prefix=audit/") == [{"log": "audit/2"}]

    first = operator.append("audit", "in", "höher", "-")
    later = operator.append("audit", "out")
    assert operator.messages("audit") == ["in", "höher", "-", "out"]
    assert operator.messages("audit", "--from", first[1], "--count=2") == ["höher", "-"]
    assert operator.run("dlog", "read", "audit", "--from", later[0]) == f"{later[0]}  out\n"
    (row,) = operator.json("dlog", "append", "audit", "last")
    assert operator.messages("audit", "--from", row["position"]) == ["last"]

    rotated = operator.json("dlog", "rotate", "audit")
    ledgers = [each["ledger"] for each in rotated["ledgers"]]
    assert all(each["state"] == "closed" for each in rotated["ledgers"])
    assert rotated["takeovers"] == 4
    shrunk = operator.json("dlog", "shrink", "audit", "--before", later[0])
    assert [each["ledger"] for each in shrunk["ledgers"]] == ledgers[1:]
    assert shrunk["first"] == later[0]
    assert later[0] in operator.run("dlog", "info", "audit")
    assert operator.messages("audit") == ["out", "last"]
    operator.run("dlog", "read", "audit", "--from", first[0], status=2, expect="was freed")

    largest = "x" * StreamLimits().stored_bytes_max
    (at,) = operator.append("audit", largest)
    assert operator.messages("audit", "--from", at) == [largest]


def test_closed_ledgers_are_offloaded_to_a_folder(operator: Commands, tmp_path: Path) -> None:
    operator.run("dlog", "create", "moved")
    for number in range(4):
        operator.append("moved", f"message {number}")
    operator.run("dlog", "offload", "moved", status=2, expect="set dlog.offload")
    there = f"--set=dlog.offload={tmp_path}"
    moved = [row["ledger"] for row in operator.json("dlog", "offload", "moved", there)]
    assert len(list(tmp_path.rglob("*.dlof"))) == len(moved) == 2
    shown = operator.json("dlog", "info", "moved", there)["ledgers"]
    assert [row["state"] for row in shown] == ["offloaded", "offloaded", "closed", "closed"]
    listed = {row["ledger"] for row in operator.json("ledger", "list")}
    assert not listed & set(moved)
    assert operator.messages("moved", there) == [f"message {number}" for number in range(4)]
    operator.run("dlog", "read", "moved", status=2, expect="set dlog.offload")


def test_a_writer_that_was_killed_leaves_a_ledger_that_is_recovered(operator: Commands) -> None:
    operator.run("dlog", "create", "killed")
    with subprocess.Popen(
        (*RAFTWOOD, "dlog", "append", "killed", *operator.flags), stdin=subprocess.PIPE
    ) as writer:
        assert writer.stdin is not None
        writer.stdin.write(b"one\ntwo\n")
        writer.stdin.flush()
        shown = operator.run("dlog", "tail", "killed", "--from=0", "--count=2", "--format=json")
        assert [json.loads(line)["data"] for line in shown.splitlines()] == ["one", "two"]
        writer.kill()
    ledger = str(operator.json("dlog", "info", "killed")["ledgers"][-1]["ledger"])
    before = operator.json("ledger", "show", ledger)
    assert (before["state"], before["last_entry"]) == ("open", None)
    recovered = operator.json("ledger", "recover", ledger)
    assert recovered["state"] == "closed"
    assert recovered["last_entry"] >= 0
    assert operator.json("ledger", "show", ledger) == recovered
    assert "closed" in operator.run("ledger", "recover", ledger)
    assert operator.messages("killed") == ["one", "two"]
    operator.append("killed", "three")
    assert operator.messages("killed") == ["one", "two", "three"]


def test_fencing_tells_the_interruption_and_leaves_no_ledger_behind(operator: Commands) -> None:
    operator.run("dlog", "create", "fenced")
    before = {row["ledger"] for row in operator.json("ledger", "list")}
    operator.append("fenced", "one")
    (row,) = operator.json("dlog", "fence", "fenced")
    assert row["log"] == "fenced"
    assert row["interruption_ms"] >= row["fence_ms"] >= 0
    assert "interruption in ms" in operator.run("dlog", "fence", "fenced")
    of_log = [each["ledger"] for each in operator.json("dlog", "info", "fenced")["ledgers"]]
    rows = operator.json("ledger", "list", f"--from={min(of_log)}")
    assert [row["ledger"] for row in rows if row["ledger"] not in before] == of_log
    assert {row["state"] for row in rows if row["ledger"] in of_log} == {"closed"}
    assert len(operator.json("ledger", "list", "--count=1")) == 1


def test_a_gateway_hears_that_its_log_was_taken_over(
    parts: dict[str, Any], operator: Commands
) -> None:
    def owned() -> list[str]:
        rows = operator.json("meta", "list", "dlog/owners/")
        return [row["key"].removeprefix("dlog/owners/") for row in rows]

    with connected(parts) as client:
        client.create_project("taken-over")
        client.create_logstore("taken-over", "s", shard_count=1, log=LogKind.DLOG)
        with client.producer("taken-over", "s") as producer:
            producer.send({"message": "before"})
        (log,) = owned()
        operator.run("dlog", "fence", log)
        assert owned() == []
        with client.producer("taken-over", "s") as producer:
            producer.send({"message": "after"})
        assert owned() == [log]
        with client.reader("taken-over", "s") as reader:
            assert [record.contents["message"] for record in reader] == ["before", "after"]


def test_what_cannot_be_done_is_said(operator: Commands) -> None:
    for words in (
        ("append", "nothing", "x"),
        ("read", "nothing"),
        ("tail", "nothing"),
        ("info", "nothing"),
        ("rotate", "nothing"),
        ("fence", "nothing"),
        ("shrink", "nothing", "--before=1:0"),
    ):
        operator.run("dlog", *words, status=1, expect="log 'nothing'")
    operator.run("dlog", "create", "errors")
    operator.append("errors", "one")
    operator.run("dlog", "create", "a b", status=2, expect="is not allowed")
    operator.run("dlog", "read", "errors", "--from=1:x", status=2, expect="LEDGER:ENTRY")
    operator.run("dlog", "read", "errors", "--from=x", status=2, expect="decimal number")
    operator.run("dlog", "read", "errors", "--from=99999:0", status=2, expect="there is nothing at")
    operator.run("dlog", "tail", "errors", "--from=99999:0", status=2, expect="behind its end")
    operator.run("dlog", "shrink", "errors", "--before=99999:0", status=2, expect="behind its end")
    operator.run("dlog", "read", "errors", "--count=0", status=2, expect="give 1 or more")
    operator.run("dlog", "append", "errors", "--fil", status=2, expect="unknown option --fil")
    for verb in ("show", "recover"):
        operator.run("ledger", verb, "99999", status=1, expect="there is no ledger 99999")
    operator.run("dlog", "list", "--bookkeeper=127.0.0.1:1", status=2, expect="not both")
