"""The benchmark of `raftwood ship`: its lines, its sinks, and what is judged."""

import os
import socket
import sys
import time
from pathlib import Path

import msgspec
import pytest
from benchmarks.clogs.shipping import (
    COUNTED,
    FILES,
    OURS,
    PEERS,
    Figures,
    Results,
    check_arrived,
)
from benchmarks.clogs.shipping_lines import LogFile, make_log_file
from benchmarks.clogs.shipping_ours import Receiving, ship_command, ship_environment
from benchmarks.clogs.shipping_peers import RSYSLOG, SYSLOG_NG
from benchmarks.clogs.shipping_process import Shipper, counting_sink
from benchmarks.clogs.shipping_report import notes, tables, verdicts
from benchmarks.clogs.shipping_sinks import Arrived
from benchmarks.harness.cluster import ClusterFailed


def figures(*, rate: float, cpu: float) -> Figures:
    return Figures(
        seconds=1000 / rate,
        megabytes_per_second=rate,
        lines_per_second=rate * 5000,
        cpu_s_per_gb=cpu,
        sink_cpu_s_per_gb=1.0,
        memory_mb=50.0,
        wire_share=1.0,
    )


def results(**rounds: list[Figures]) -> Results:
    known = {name.replace("_", "-"): rows for name, rows in rounds.items()}
    systems = dict.fromkeys(known, "as it comes")
    return Results(
        disk="ext4", lines=5_000_000, bytes=10**9, systems=systems, rounds=known, loads=[0.5]
    )


def test_each_line_of_the_file_is_another_one(tmp_path: Path) -> None:
    file = make_log_file(tmp_path / "access.log", 100_000, lines=100)
    lines = Path(file.path).read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == len(set(lines)) == file.lines
    assert Path(file.path).stat().st_size == file.bytes >= 100_000
    assert 150 < file.bytes / file.lines < 250


def test_the_sink_of_lines_tells_when_all_have_come(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    program = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    with (
        counting_sink("lines", 12) as sink,
        Shipper([sys.executable, "-c", program], {}, tmp_path) as shipper,
        socket.create_connection(("127.0.0.1", sink.port)) as connection,
    ):
        # One that has not begun yet has used neither time nor memory.
        while not begun.exists():
            time.sleep(0.01)
        connection.sendall(b"one\ntw")
        connection.sendall(b"o\nfour\n")
        arrived = sink.arrived(shipper)
        assert (arrived.lines, arrived.bytes, arrived.wire_bytes) == (3, 13, 13)
        shipper.end()
    assert arrived.monotonic_s >= shipper.began_s
    assert shipper.cpu_s > 0
    assert shipper.memory_bytes > 1 << 20


def test_a_shipper_that_ends_too_early_is_told_with_its_last_words(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "raise SystemExit('no such file')"]
    with (
        counting_sink("lines", 12) as sink,
        Shipper(failing, {}, tmp_path) as shipper,
        pytest.raises(ClusterFailed, match="no such file"),
    ):
        sink.arrived(shipper)
    with Shipper(failing, {}, tmp_path) as shipper, pytest.raises(ClusterFailed, match="status 1"):
        shipper.wait()


def test_one_that_has_ended_by_the_time_it_is_told_to_is_reaped_all_the_same(
    tmp_path: Path,
) -> None:
    with Shipper(["true"], {}, tmp_path) as shipper:
        os.waitid(os.P_PID, shipper.pid, os.WEXITED | os.WNOWAIT)
    assert shipper.ended_s >= shipper.began_s


def test_lines_that_do_not_arrive_are_no_figures() -> None:
    file = LogFile("access.log", lines=3, bytes=12)
    check_arrived(COUNTED, file, Arrived(1.0, 3, 12, 12, 0.1))
    with pytest.raises(ClusterFailed, match="2 of 3 lines arrived"):
        check_arrived(COUNTED, file, Arrived(1.0, 2, 12, 12, 0.1))


def test_a_secret_is_no_argument() -> None:
    receiving = Receiving(address="127.0.0.1:7", key="K", secret="not told")
    command = ship_command(receiving, Path("/state"), "/a.log")
    assert "--set=clogs_client.servers=127.0.0.1:7" in command
    assert "not told" not in " ".join(command)
    assert ship_environment(receiving)["RAFTWOOD_CLOGS_CLIENT__ACCESS_SECRET"] == "not told"


def test_ours_is_judged_by_medians_beside_each_peer() -> None:
    found = results(
        rsyslog=[figures(rate=50, cpu=20), figures(rate=1, cpu=99), figures(rate=40, cpu=10)],
        syslog_ng=[figures(rate=80, cpu=10)],
        ship=[figures(rate=60, cpu=15)],
    )
    judged = {verdict.what: (verdict.measured, verdict.is_reached) for verdict in verdicts(found)}
    assert judged == {
        "MB/s against rsyslog": (1.5, True),
        "CPU per GB against rsyslog": (0.75, True),
        "MB/s against syslog-ng": (0.75, False),
        "CPU per GB against syslog-ng": (1.5, False),
    }
    assert [table.row_count for table in tables(found)] == [3, 1, 4]


def test_what_is_missing_is_said_and_nothing_is_judged() -> None:
    found = results(ship=[figures(rate=60, cpu=15)], ship_files=[figures(rate=30, cpu=15)])
    found.missing[RSYSLOG] = "apt-get is missing"
    found.failed.append("syslog-ng: it ended early")
    assert verdicts(found) == []
    assert [table.row_count for table in tables(found)] == [2]
    told = "\n".join(notes(found))
    assert "rsyslog: not available: apt-get is missing" in told
    assert "failed: syslog-ng: it ended early" in told
    assert msgspec.json.decode(msgspec.json.encode(found), type=Results) == found
    assert FILES in OURS
    assert (RSYSLOG, SYSLOG_NG) == PEERS
