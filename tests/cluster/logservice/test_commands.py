"""The log service from the command line and from a plain script, on real stores."""

import json
import os
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftwood.base.errors import Unavailable
from raftwood.logservice.client import (
    LogClient,
    LogShardNotFound,
    LsnTruncated,
    ReadOnlyClient,
)
from tests.kits.processes import INTERRUPTIBLE
from tests.kits.raft.stores import WAIT, Stores

ALONE = """
[logservice]
record_bytes_max = 65536
truncation_ms = 100
snapshot_entries = 10

[hakeeper]
log_replicas = 1
hakeeper_replicas = 1
tick_ms = 100
heartbeat_ms = 100
bootstrap_ticks = 50
"""
JSON = "--format=json"
GONE_S_MAX = 240.0
SERVICE = ("logservice", "start")


@pytest.fixture(scope="module")
def stores(module_folder: Path) -> Iterator[Stores]:
    with Stores(module_folder, first=1, more=1, extra=ALONE, service=SERVICE) as stores:
        stores.start(1)
        stores.run("cluster", "status", *WAIT)
        yield stores


def records(text: str) -> list[str]:
    return [line.split("  ", 1)[1] for line in text.splitlines()]


def test_the_metastore_of_log_stores_is_asked_as_any_other(stores: Stores) -> None:
    connect = f"--connect={stores.addresses[1]}"
    assert stores.rows("meta", "put", "a", "one", connect) == [{"version": 1}]
    assert stores.rows("meta", "get", "a", connect)[0]["value"] == "one"
    assert "log-1" in [row["name"] for row in stores.rows("log", "list")]
    stores.run("log", "remove", "metastore", status=2, expect="is no log")
    stores.run("log", "read", "metastore", status=2, expect="no log")


def test_logs_are_made_written_read_and_removed_from_the_command_line(
    stores: Stores, tmp_path: Path
) -> None:
    stores.run("log", "create", "17", status=2, expect="add a letter")
    made = stores.rows("log", "create", "orders")[0]
    assert (made["name"], made["leader"]) == ("orders", 1)
    stores.run("log", "create", "orders", status=1, expect="exists")
    lsns = [row["lsn"] for row in stores.rows("log", "append", "orders", "first", "second")]
    lines = "".join(f"line {number}\n" for number in range(3_000)) + "\nthe last"
    (row,) = json.loads(stores.run("log", "append", "orders", "--format=json", lines=lines))
    assert row["records"] == 3_002
    assert row["first_lsn"] > lsns[-1], "connecting takes one"
    (tmp_path / "lines").write_text("from a file\n")
    stores.run("log", "append", str(made["shard"]), "--file", str(tmp_path / "lines"))
    stores.run(
        "log", "append", "orders", "--file", str(tmp_path), status=2, expect="cannot be read"
    )
    stores.run("log", "append", "orders", "-", status=2, expect="0 records", lines="x" * 70_000)
    stores.run("log", "append", "orders", "--fil", "x", status=2, expect="unknown option --fil")

    found = records(stores.run("log", "read", "orders"))
    assert found == ["first", "second", *lines.split("\n"), "from a file"]
    some = stores.run("log", "read", "orders", "--from", str(lsns[1]), "--count", "2")
    assert some == f"{lsns[1]}  second\n{row['first_lsn']}  line 0\n"
    assert len(records(stores.run("log", "read", "orders", "--bytes", "12"))) == 3
    shown = stores.run(
        "log", "tail", "orders", "--from", str(lsns[0]), "--count=1", "--format=json"
    )
    assert json.loads(shown) == {"lsn": lsns[0], "holder": 0, "data": "first"}
    stores.run("log", "read", "orders", "--from", "99999999", status=2, expect="can be read")

    assert f"{lsns[0]} " in stores.run("log", "truncate", "orders", str(lsns[0]))
    stores.run("log", "read", "orders", "--from", str(lsns[0]), status=2, expect="is truncated")
    info = stores.rows("log", "info", "orders", "--read-only")[0]
    assert (info["truncated_lsn"], info["leader"]) == (lsns[0], 1)
    assert "truncated_lsn" in stores.run("log", "info", "orders")
    assert stores.run("log", "read", "orders", "--count=1", "--read-only").endswith("second\n")

    assert {"log-1", "orders"} <= {row["name"] for row in stores.rows("log", "list", "--read-only")}
    stores.run("log", "remove", "orders", expect="orders")
    wait_gone(stores, "orders")


def wait_gone(stores: Stores, log: str) -> None:
    """Until stores do what HAKeeper has decided: the log is nowhere any more."""
    deadline = time.monotonic() + GONE_S_MAX
    while True:
        try:
            stores.run("log", "read", log, status=1, expect=log)
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def test_a_log_is_backed_up_and_restored_with_its_lsns(stores: Stores, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    stores.run("log", "create", "once")
    stores.run("log", "append", "once", *(f"record {number}" for number in range(20)))
    whole = stores.run("log", "read", "once")
    stores.run("log", "backup", "once", str(folder), "--read-only", expect="20")
    stores.run("log", "backup", "once", str(folder), status=1, expect="not empty")
    stores.run("log", "restore", str(folder), "again", expect="20")
    assert stores.run("log", "read", "again") == whole
    lsns = [stores.rows("log", "append", log, "next")[0]["lsn"] for log in ("once", "again")]
    assert lsns[0] == lsns[1]
    stores.run("log", "restore", str(folder), "again", status=1, expect="only an empty shard")
    (file,) = folder.glob("records-*")
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    stores.run("log", "restore", str(folder), "more", status=1, expect=file.name)
    assert "more" not in [row["name"] for row in stores.rows("log", "list")]


def test_a_store_is_drained_by_another_that_joined_and_then_forgotten(tmp_path: Path) -> None:
    with Stores(tmp_path, first=1, more=1, extra=ALONE, service=SERVICE) as stores:
        stores.start(1)
        stores.run("cluster", "status", *WAIT)
        drain(stores)


def drain(stores: Stores) -> None:
    stores.run("log", "append", "log-1", "kept")
    stores.run(
        "cluster", "drain", "1", "--wait-seconds", "2", status=1, expect="still has replicas"
    )
    stores.run("cluster", "drain", "1", "--undo", expect="up")
    stores.start(2, joins=True)
    stores.run("cluster", "drain", "1", "--no-wait", expect="draining")
    stores.run("cluster", "drain", "1", "--wait-seconds", "60")
    stores.run("cluster", "forget", "2", status=1, expect="is a member of shard")
    assert stores.processes[1].stop() == 0
    near = ("--connect", stores.addresses[2])
    view = json.loads(stores.run("cluster", "status", "--format=json", *near))
    voters = {each["name"]: each["voters"] for each in view["shards"]}
    assert voters == {"hakeeper": [2], "log-1": [2], "metastore": [2], "zeppelin": [2]}
    stores.run("cluster", "forget", "1", *near)
    stores.run("cluster", "forget", "1", *near, status=1, expect="never heard of store 1")
    assert stores.run("log", "read", "log-1", *near).endswith("  kept\n")
    assert "store-down" not in stores.run("cluster", "status", *near)


def test_a_tail_ends_when_it_is_interrupted(stores: Stores) -> None:
    stores.run("log", "create", "followed")
    tail = subprocess.Popen(
        (*INTERRUPTIBLE, "log", "tail", "followed", "--from", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"RAFTWOOD_CONFIG": str(stores.config)},
    )
    assert tail.stdout is not None
    stores.run("log", "append", "followed", "a record")
    assert tail.stdout.readline().endswith("  a record\n")
    tail.send_signal(signal.SIGINT)
    output, errors = tail.communicate(timeout=60)
    assert (tail.returncode, output, errors) == (130, "", "error: interrupted\n")


def test_a_plain_script_uses_a_log_from_many_threads(stores: Stores) -> None:
    shard = int(stores.rows("log", "create", "script")[0]["shard"])
    secrets = tomllib.loads(stores.config.read_text())["secrets"]
    address = stores.addresses[1]
    with LogClient.connect(address, secret=secrets["clients"], shard="script") as log:
        check_calls(log)
        check_threads(log)
        with LogClient.connect(
            [address], secret=secrets["readers"], shard=shard, is_read_only=True
        ) as reader:
            first = log.info().log.first_lsn
            assert reader.read(first)[0] == log.read(first)[0]
            with pytest.raises(ReadOnlyClient):
                reader.append(b"")
    with pytest.raises(Unavailable, match="closed"):
        log.append(b"")
    log.close()
    with pytest.raises(LogShardNotFound):
        LogClient.connect(address, secret=secrets["clients"], shard="none", timeout_ms=30_000)


def check_calls(log: LogClient) -> None:
    record = log.get_log_record(5)
    record.payload[:] = b"first"
    first = log.append(record)
    soon = [log.append_soon(b"%d" % number) for number in range(100)]
    lsns = [first, *(each.result() for each in soon), *log.append_many(b"x" for _ in range(10))]
    assert lsns == sorted({*lsns})
    found, following = log.read(first)
    assert [each.lsn for each in found] == lsns
    assert log.read(following) == ([], following)
    tail = log.tail(first)
    assert [bytes(next(tail).payload) for _ in range(3)] == [b"first", b"0", b"1"]
    assert log.append_once(b"y", producer="a", sequence=1) == log.append_once(
        b"y", producer="a", sequence=1
    )
    assert log.get_tso_timestamp(5) + 5 == log.get_tso_timestamp()
    log.set_required_lsn(lsns[50])
    log.truncate(lsns[60])
    assert (log.get_truncated_lsn(), log.get_required_lsn()) == (lsns[60], lsns[50])
    assert log.info().log.first_lsn == lsns[50]
    log.set_required_lsn(0)
    with pytest.raises(LsnTruncated):
        log.read(lsns[50])
    log.update_leaseholder_id(7)
    assert log.append(b"held") <= log.get_latest_lsn()


def check_threads(log: LogClient) -> None:
    before = log.get_latest_lsn()
    threads = [
        threading.Thread(target=lambda name=name: log.append_many([name] * 50))
        for name in (b"a", b"b", b"c", b"d")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [bytes(each.payload) for each in log.read(before + 1)[0]]
    assert sorted(found) == sorted([b"a", b"b", b"c", b"d"] * 50)
