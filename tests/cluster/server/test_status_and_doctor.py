"""`raftwood status` and `raftwood doctor` on a standalone: while it runs, and with parts away."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftwood.cli.command_line import run as raftwood
from tests.kits.dlog.command_kit import Commands
from tests.kits.server.running import standalone

PARTS = ("log service", "LogHub", "bookies", "Zeppelin", "clogs")


@pytest.fixture(scope="module")
def parts(module_folder: Path) -> Iterator[dict[str, Any]]:
    """A standalone that writes the context by which the commands here find it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(module_folder / "config"))
        patch.delenv("RAFTWOOD_CONTEXT")
        with standalone(module_folder) as served:
            yield served


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Takes connections, and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def failing(output: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What a command prints that finds a problem, and so ends with status 1."""
    assert raftwood([*arguments, "--format=json"]) == 1
    shown = output.readouterr()
    assert not shown.err
    found: dict[str, Any] = json.loads(shown.out)
    return found


def levels(found: dict[str, Any], check: str) -> list[str]:
    return [each["level"] for each in found["findings"] if each["check"] == check]


@pytest.mark.usefixtures("parts")
def test_all_parts_of_a_standalone_are_well() -> None:
    found = Commands().json("status", "--wait-seconds=60")
    assert found["problems"] == []
    assert [each["part"] for each in found["parts"]] == [*PARTS]
    assert {each["state"] for each in found["parts"]} == {"ok"}
    assert Commands().run("status").startswith("nothing is wrong\n")


@pytest.mark.usefixtures("parts")
def test_a_key_of_one_project_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = Commands().json("key", "create", "default=reader")
    monkeypatch.setenv("RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY", key["id"])
    monkeypatch.setenv("RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET", key["secret"])
    (loghub,) = [each for each in Commands().json("status")["parts"] if each["part"] == "LogHub"]
    assert loghub["state"] == "ok"
    assert loghub["text"].startswith("1 of 1 gateway up")


def test_a_part_that_is_silent_hides_no_other(
    parts: dict[str, Any], silent_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gateways = f"--set=loghub_client.gateways={parts['loghub']['native']},{silent_address}"
    receivers = f"--set=clogs_client.servers={silent_address}"
    found = failing(capsys, "status", gateways, receivers)
    states = {each["part"]: each["state"] for each in found["parts"]}
    assert states == dict.fromkeys(PARTS, "ok") | {"LogHub": "problem", "clogs": "problem"}
    assert [each["part"] for each in found["problems"]] == ["LogHub", "clogs"]
    assert all(silent_address in each["text"] and each["remedy"] for each in found["problems"])
    (loghub,) = [each for each in found["parts"] if each["part"] == "LogHub"]
    assert loghub["text"].startswith("1 of 2 gateways up, 1 project, 1 logstore")


def test_the_doctor_tries_each_address_with_each_secret(
    parts: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = f"--port-base={parts['logservice']['address'].rpartition(':')[2]}"
    found = Commands().json("doctor", base, f"--data={tmp_path}")
    assert [each for each in found["findings"] if each["level"] == "problem"] == []
    assert levels(found, "log service") == ["ok", "ok"]  # as a client, and as an operator
    for check in ("LogHub", "clogs", "Zeppelin", "servers' release", "servers' clock", "ports"):
        assert levels(found, check) == ["ok"], check
    assert levels(found, "sync speed")
    assert not [*tmp_path.iterdir()]

    monkeypatch.setenv("RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET", "of-another-key-" * 3)
    monkeypatch.setenv("RAFTWOOD_SECRETS__OPERATORS", "of-another-cluster-" * 2)
    monkeypatch.setenv("RAFTWOOD_ZEPPELIN_CLIENT__PASSWORD", "of-another-user")
    found = failing(capsys, "doctor")
    assert levels(found, "log service") == ["ok", "problem"]
    for check in ("LogHub", "Zeppelin"):
        assert levels(found, check) == ["problem"], check
