"""Contexts: client configuration files by name, and which of them is read."""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from raftwood.base.configuration import client_variable, load_configuration
from raftwood.base.contexts import Contexts, write_privately
from raftwood.base.errors import InvalidConfiguration, InvalidName, NotFound
from raftwood.base.settings import Section


class HubSettings(Section, frozen=True):
    gateway: Annotated[str, Meta(description="Where.")] = "nowhere"
    key: Annotated[str, Meta(description="Which.")] = ""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    hub: HubSettings


def _file(gateway: str) -> bytes:
    return f"[hub]\ngateway = '{gateway}'\n".encode()


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with contexts one, which is in use, and two."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    contexts = Contexts.of(environment)
    contexts.write("one", _file("first"))
    contexts.write("two", _file("second"))
    contexts.use("one")
    return environment


def _gateway(environment: dict[str, str], *flags: str, file: str | None = None) -> tuple[str, str]:
    configuration = load_configuration(
        Sample, file=file, environment=environment, assignments=flags, reads_context=True
    )
    return configuration.settings.hub.gateway, configuration.origin("hub.gateway")


def test_a_client_reads_the_context_in_use_and_a_variable_names_another_one(
    user: dict[str, str],
) -> None:
    assert _gateway(user) == ("first", "context one:hub.gateway")
    assert _gateway(user | {"RAFTWOOD_CONTEXT": "two"}) == ("second", "context two:hub.gateway")
    assert _gateway(user | {"RAFTWOOD_CONTEXT": ""}) == ("nowhere", "default")


def test_a_flag_beats_the_environment_beats_the_context(user: dict[str, str]) -> None:
    given = user | {"RAFTWOOD_HUB__GATEWAY": "of-the-environment"}
    assert _gateway(given)[0] == "of-the-environment"
    assert _gateway(given, "hub.gateway=of-a-flag")[0] == "of-a-flag"


def test_where_a_file_is_given_no_context_is_read(user: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text("[hub]\nkey = 'k'\n")
    assert _gateway(user, file=str(file)) == ("nowhere", "default")
    assert _gateway(user | {"RAFTWOOD_CONFIG": str(file)}) == ("nowhere", "default")


def test_a_server_reads_no_context(user: dict[str, str]) -> None:
    configuration = load_configuration(Sample, environment=user)
    assert configuration.origin("hub.gateway") == "default"


def test_a_mistake_in_a_context_names_it(user: dict[str, str]) -> None:
    Contexts.of(user).write("one", b"[hub]\ngatway = 'x'\n")
    with pytest.raises(InvalidConfiguration, match=r"hub.gatway.*context one.*hub.gateway"):
        _gateway(user)


def test_a_user_without_contexts_gets_defaults(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", Path("/dev/null")):
        environment = {"XDG_CONFIG_HOME": str(folder)}
        assert _gateway(environment) == ("nowhere", "default")
        assert Contexts.of(environment).names() == []


@pytest.mark.parametrize("given", [{}, {"XDG_CONFIG_HOME": ""}, {"XDG_CONFIG_HOME": "relative"}])
def test_contexts_are_in_the_home_folder_if_no_other_is_named(given: dict[str, str]) -> None:
    contexts = Contexts.of({"HOME": "/h"} | given)
    assert contexts.path("one") == "/h/.config/raftwood/contexts/one.toml"


def test_its_owner_alone_can_read_a_context(user: dict[str, str], tmp_path: Path) -> None:
    assert Path(Contexts.of(user).path("one")).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "raftwood/contexts").stat().st_mode & 0o777 == 0o700


def test_a_context_that_is_removed_is_in_use_no_more(user: dict[str, str]) -> None:
    contexts = Contexts.of(user)
    contexts.remove("two")
    assert (contexts.names(), contexts.current()) == (["one"], "one")
    contexts.remove("one")
    assert (contexts.names(), contexts.current()) == ([], None)
    for change in (contexts.use, contexts.remove, contexts.read):
        with pytest.raises(NotFound, match="raftwood context list"):
            change("one")


def test_a_context_in_use_whose_file_is_gone_is_an_error(user: dict[str, str]) -> None:
    Path(Contexts.of(user).path("one")).unlink()
    with pytest.raises(NotFound, match="there is no context one"):
        _gateway(user)


@pytest.mark.parametrize("name", ["../one", "a/b", ".", "a b", "x" * 200])
def test_a_name_leads_to_no_other_folder(user: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidName):
        Contexts.of(user).write(name, b"")
    with pytest.raises(InvalidName):
        _gateway(user | {"RAFTWOOD_CONTEXT": name})


def test_a_folder_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(InvalidConfiguration, match="/dev/null/raftwood"):
        Contexts.of({"XDG_CONFIG_HOME": "/dev/null"}).write("one", b"")


def test_a_program_reads_one_setting_by_the_name_of_its_variable(
    user: dict[str, str], tmp_path: Path
) -> None:
    variable = "RAFTWOOD_HUB__GATEWAY"
    assert client_variable(variable, user) == "first"
    assert client_variable(variable, user | {variable: "given"}) == "given"
    assert client_variable("RAFTWOOD_HUB__KEY", user) is None
    assert client_variable(variable, {}) is None
    file = tmp_path / "client.toml"
    file.write_text("[hub]\ngateway = ['a', 'b']\n")
    assert client_variable(variable, user | {"RAFTWOOD_CONFIG": str(file)}) == "a,b"


def test_a_user_without_a_right_to_the_home_folder_has_no_contexts(
    user: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a service has none that may not look into its user's home."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        patch.setattr("os.listdir", refuse)
        assert Contexts.of(user).names() == []
        assert _gateway(user) == ("nowhere", "default")


def test_a_private_file_takes_nothing_from_one_that_is_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"")
    (tmp_path / "ready.json.new").symlink_to(theirs)
    write_privately(str(path), b"secret")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"secret", 0o600)
    assert theirs.read_bytes() == b""
