"""`raftwood context`, the context that a local cluster writes, and the servers that read none."""

import json
import os
from pathlib import Path

import pytest

from raftwood.base.configuration import compose
from raftwood.base.contexts import Contexts
from raftwood.base.errors import InvalidName
from raftwood.cli.command_line import run as raftwood
from raftwood.cli.context import ContextOption, write_context
from raftwood.cli.lease_target import LeaseTarget, store_url
from raftwood.cli.options import Source
from raftwood.server.clients import DEFAULT_LEASES, LEASE_FILE
from raftwood.server.parts import KvPart, LogHubPart, LogServicePart, Parts
from raftwood.server.settings import Settings
from raftwood.server.standalone import standalone_settings

SECRET = "a-secret-of-thirty-two-characters"
FILE = f"""\
[cluster]
members = ["1=h:1"]

[loghub_client]
gateways = ["h:2"]
access_secret = "{SECRET}"
"""
PARTS = Parts(
    LogHubPart("http://h:3", "h:2,h:4", "the-key", SECRET),
    LogServicePart("h:1", "/f/standalone.toml"),
    1,
    KvPart(host="h", port=6, user="default", password="the-password"),
    ("h:7",),
)


@pytest.fixture(autouse=True)
def _user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAFTWOOD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    Path("client.toml").write_text(FILE)


class Commands:
    """Carries out commands, and checks how they end."""

    def __init__(self, output: pytest.CaptureFixture[str]) -> None:
        self._output = output

    def run(self, *arguments: str, status: int = 0) -> str:
        self._output.readouterr()
        ended = raftwood([*arguments])
        shown = self._output.readouterr()
        assert ended == status, (arguments, shown)
        return shown.err if status else shown.out


@pytest.fixture
def commands(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


def test_contexts_are_added_listed_used_shown_and_removed(commands: Commands) -> None:
    assert "there is no context" in commands.run("context", "list")
    assert "no context is in use" in commands.run("context", "show", status=1)
    assert "in use" in commands.run("context", "add", "one", "client.toml")
    assert "in use" not in commands.run("context", "add", "two", "client.toml")
    rows = json.loads(commands.run("context", "list", "--format=json"))
    assert [(row["name"], row["in_use"]) for row in rows] == [("one", True), ("two", False)]
    commands.run("context", "use", "two")
    assert commands.run("context", "show").startswith("# Context two:")
    commands.run("context", "remove", "two")
    assert "no context is in use" in commands.run("context", "show", status=1)
    assert "there is no context two" in commands.run("context", "use", "two", status=1)


def test_secrets_are_shown_only_if_they_are_asked_for(commands: Commands) -> None:
    commands.run("context", "add", "one", "client.toml")
    for form in ("text", "json"):
        shown = commands.run("context", "show", f"--format={form}")
        assert ("h:2" in shown, "****" in shown, SECRET in shown) == (True, True, False)
        assert SECRET in commands.run("context", "show", f"--format={form}", "--secrets")
    assert SECRET not in commands.run("config", "show")


def test_config_show_names_the_context_that_a_value_is_from(commands: Commands) -> None:
    commands.run("context", "add", "one", "client.toml")
    rows = {row["name"]: row for row in json.loads(commands.run("config", "show", "--format=json"))}
    assert rows["loghub_client.gateways"]["origin"] == "context one:loghub_client.gateways"
    assert rows["loghub_client.access_key"]["origin"] == "default"


def test_a_file_with_mistakes_and_a_name_in_use_are_refused(commands: Commands) -> None:
    Path("wrong.toml").write_text("[loghub_client]\ngateway = 1\n")
    assert "gateways" in commands.run("context", "add", "one", "wrong.toml", status=2)
    assert "cannot be read" in commands.run("context", "add", "one", "none.toml", status=2)
    commands.run("context", "add", "one", "client.toml")
    assert "--replace" in commands.run("context", "add", "one", "client.toml", status=1)
    commands.run("context", "add", "one", "client.toml", "--replace")


def test_a_choice_that_the_environment_overrides_is_said(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands.run("context", "add", "one", "client.toml")
    monkeypatch.setenv("RAFTWOOD_CONTEXT", "")
    assert raftwood(["context", "use", "one"]) == 0
    assert "RAFTWOOD_CONTEXT is set" in capsys.readouterr().err


# What a local cluster writes about itself.


def _written(tmp_path: Path, option: ContextOption = ContextOption()) -> Settings | None:  # noqa: B008
    settings = standalone_settings(str(tmp_path / "data"), port_base=7400)
    written = write_context(option, settings, PARTS, command="standalone", name="standalone")
    if written is None:
        return None
    data = Contexts.of(os.environ).read(written.name)
    return compose(Settings, data=data, context=written.name).settings


def test_the_context_of_a_standalone_has_all_that_clients_and_operators_need(
    tmp_path: Path,
) -> None:
    found = _written(tmp_path)
    assert found is not None
    assert found.cluster.addresses() == {1: "127.0.0.1:7400"}
    assert found.loghub_client.gateways == ("h:2", "h:4")
    assert found.loghub_client.lease_store.reveal() == "meta://127.0.0.1:7400"
    assert found.clogs_client.servers == ("h:7",)
    for client in (found.loghub_client, found.clogs_client):
        assert (client.access_key, client.access_secret.reveal()) == ("the-key", SECRET)
    assert found.zeppelin_client.addresses == ("h:6",)
    assert found.zeppelin_client.password.reveal() == "the-password"
    assert found.hakeeper.log_replicas == 1
    secrets = standalone_settings(str(tmp_path / "data"), port_base=7400).secrets
    for role in ("clients", "operators", "metrics"):
        assert getattr(found.secrets, role) == getattr(secrets, role)
    assert not found.secrets.stores  # proves a store to another, and a client is none


def test_the_first_context_is_in_use_and_others_leave_it_so(tmp_path: Path) -> None:
    contexts = Contexts.of(os.environ)
    assert _written(tmp_path, ContextOption(context="mine")) is not None
    assert _written(tmp_path) is not None
    assert _written(tmp_path) is not None
    assert (contexts.names(), contexts.current()) == (["mine", "standalone"], "mine")


def test_a_context_of_the_users_own_is_left_alone(tmp_path: Path, commands: Commands) -> None:
    commands.run("context", "add", "standalone", "client.toml")
    assert _written(tmp_path) is None
    assert Contexts.of(os.environ).read("standalone") == FILE.encode()


def test_no_context_is_written_where_it_is_not_wanted_or_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _written(tmp_path, ContextOption(no_context=True)) is None
    monkeypatch.setenv("RAFTWOOD_CONTEXT", "")
    assert _written(tmp_path) is None
    assert not Path("config").exists()
    monkeypatch.delenv("RAFTWOOD_CONTEXT")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    assert _written(tmp_path) is None


def test_a_name_that_cannot_be_one_is_refused_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAFTWOOD_CONTEXT", "my cluster")
    with pytest.raises(InvalidName, match="my cluster"):
        ContextOption().check()
    ContextOption(no_context=True).check()
    monkeypatch.setenv("RAFTWOOD_CONTEXT", "")
    ContextOption().check()


def test_a_damaged_choice_of_a_context_does_not_end_the_cluster(
    tmp_path: Path, commands: Commands
) -> None:
    del commands
    assert _written(tmp_path) is not None
    contexts = Contexts.of(os.environ)
    Path(contexts.folder).with_name("current").write_text("my cluster")
    ContextOption().check()
    assert _written(tmp_path) is None


def test_groups_whose_leases_are_in_the_folder_stay_there(tmp_path: Path) -> None:
    assert _written(tmp_path) is not None
    assert store_url(LeaseTarget(), Source().load()) == "meta://127.0.0.1:7400"
    Path(LEASE_FILE).touch()
    assert store_url(LeaseTarget(), Source().load()) == DEFAULT_LEASES
    assert store_url(LeaseTarget("meta://h:1"), Source().load()) == "meta://h:1"


# Servers.

SERVERS = (
    ("serve",),
    ("logservice", "start"),
    ("gateway", "start"),
    ("bookie", "start"),
    ("kv", "node", "start"),
)


@pytest.mark.parametrize("command", SERVERS, ids=" ".join)
def test_a_server_does_not_read_the_context_of_the_user_who_starts_it(
    command: tuple[str, ...], commands: Commands
) -> None:
    contexts = Contexts.of(os.environ)
    contexts.write("broken", b"[no_such_section]\n")
    contexts.use("broken")
    # Any reader of the context fails by it; a server fails for it has no settings.
    said = commands.run(*command, status=2)
    assert "no_such_section" not in said
    assert "is not set" in said or "cluster.members" in said, said
    assert "no_such_section" in commands.run("config", "check", status=2)
