"""What `serve`, `raft`, `meta --connect` and `config secret` say before a cluster is there."""

import os
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftwood.base.logs import set_up_logs
from raftwood.base.settings import LoggingSettings
from raftwood.cli.command_line import run as raftwood


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("RAFTWOOD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield
    # A store says how the whole process logs; the next test is not to inherit it.
    set_up_logs(LoggingSettings(level="warning", format="text"), clock=None)


@pytest.fixture
def secrets(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    assert raftwood(["config", "secret"]) == 0
    text = capsys.readouterr().out
    Path("cluster.toml").write_text(text)
    monkeypatch.setenv("RAFTWOOD_CONFIG", "cluster.toml")
    return {str(name): str(value) for name, value in tomllib.loads(text)["secrets"].items()}


@pytest.fixture
def taken_address() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def failure(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert raftwood([*arguments]) == status
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    return errors.splitlines()[-1]


def test_secrets_are_new_each_time_and_never_shown(
    secrets: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len({*secrets.values()}) == len(secrets) == 5
    assert all(len(secret) >= 32 for secret in secrets.values())
    assert raftwood(["config", "secret"]) == 0
    assert not any(secret in capsys.readouterr().out for secret in secrets.values())
    for output in ("text", "json", "toml"):
        assert raftwood(["config", "show", "--format", output]) == 0
        shown = capsys.readouterr().out
        assert "secrets" in shown
        assert not any(secret in shown for secret in secrets.values())


def test_a_store_without_secrets_is_told_how_to_make_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    members = "cluster.members=1=127.0.0.1:1"
    assert "raftwood config secret" in failure(capsys, 2, "serve", "--set", members)
    assert "raftwood config secret" in failure(capsys, 2, "raft", "status", "--set", members)


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve",), "cluster.members is empty"),
        (("serve", "--set", "cluster.members=2=h:1"), "store 1 is not among cluster.members"),
        (("serve", "--set", "cluster.members=1=h:1,1=h:2"), "names a store twice"),
        (("serve", "--set", "cluster.members=h:1"), "cluster.members cannot be 'h:1'"),
        (("serve", "--set", "tls.certificate=x"), "give all three"),
        (("raft", "status"), "name some stores"),
        (("raft", "status", "--connect", "nowhere"), "give host:port"),
        (("serve", "--set", "secrets.stores=x"), "RAFTWOOD_SECRETS__STORES"),
    ],
)
def test_what_is_wrong_is_told_with_a_remedy(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failure(capsys, 2, *arguments)


@pytest.mark.usefixtures("secrets")
def test_an_address_that_is_taken_ends_the_store(
    taken_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    members = f"cluster.members=1={taken_address}"
    told = failure(capsys, 1, "serve", "--set", members, "--set", "node.data_folder=store")
    assert f"cannot listen on {taken_address}" in told
    assert "set node.listen" in told


@pytest.mark.usefixtures("secrets")
def test_a_cluster_that_is_away_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        for command in (("raft", "members"), ("meta", "status")):
            told = failure(capsys, 1, *command, "--connect", address)
            assert f"no store answers: cannot connect to {address}" in told


def test_a_demo_refuses_a_folder_with_something_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").write_text("dear")
    assert "name a new folder" in failure(capsys, 2, "demo", "cluster", "--data", str(tmp_path))
    assert "0.1 to 3600" in failure(capsys, 2, "demo", "cluster", "--seconds", "0")
