"""A ring's configuration from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.kits.clogs.rings import ring

from raftwood.cli.command_line import run as raftwood
from raftwood.clogs.configuration import (
    RingConfiguration,
    configuration_digest,
    encode_configuration,
)

Config = Callable[..., str]


@pytest.fixture
def config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Config:
    def call(*arguments: str, status: int = 0) -> str:
        command = ["clogs", "config", *arguments, "--file", f"{tmp_path}/meta"]
        assert raftwood(command) == status
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return captured.out if status == 0 else captured.err

    return call


def written(folder: Path, configuration: RingConfiguration) -> str:
    file = folder / "ring.json"
    file.write_bytes(encode_configuration(configuration))
    return str(file)


def test_a_configuration_is_set_shown_and_rolled_back(tmp_path: Path, config: Config) -> None:
    assert "has no configuration: set one by" in config("get", status=1)
    first, second = ring("a", "b"), ring("a", "b", "c")
    shown = json.loads(config("set", written(tmp_path, first), "--format", "json"))
    digest = configuration_digest(first)
    assert shown == [{"ring": "default", "version": 1, "digest": digest, "servers": 2}]
    text = config("set", written(tmp_path, second), "--comment", "one more").split()
    assert text[4:6] == ["default", "2"]
    whole = json.loads(config("get", "--format", "json"))
    assert (whole["ring"], whole["version"]) == ("default", 2)
    assert msgspec.convert(whole["configuration"], type=RingConfiguration) == second
    assert json.loads(config("get", "--version", "1"))["version"] == 1
    assert config("rollback").split()[5] == "1"
    rows = json.loads(config("history", "--format", "json"))
    assert [(row["version"], row["is_current"], row["comment"]) for row in rows] == [
        (2, False, "one more"),
        (1, True, ""),
    ]
    assert rows[0]["set_at_ms"] >= rows[1]["set_at_ms"] > 1_600_000_000_000
    lines = config("history", "--limit", "1").splitlines()
    assert lines[0].split() == ["version", "counts", "set", "at", "servers", "replaced", "comment"]
    assert len(lines) == 2
    assert config("rollback", "--to", "2").split()[5] == "2"
    assert "no version 7" in config("rollback", "--to", "7", status=1)
    assert "--limit 0" in config("history", "--limit", "0", status=2)


def test_what_get_printed_can_be_changed_and_set_once(tmp_path: Path, config: Config) -> None:
    config("set", written(tmp_path, ring("a")))
    file = tmp_path / "edited.json"
    file.write_text(config("get").replace('"weight": 1', '"weight": 7'))
    assert config("set", str(file)).split()[5] == "2"
    # It was made from version 1, which counts no more.
    assert "version 2 of ring 'default' counts, not 1" in config("set", str(file), status=1)
    assert config("set", str(file), "--expect-version", "2").split()[5] == "2"


def test_a_wrong_configuration_is_refused_with_all_its_mistakes(
    tmp_path: Path, config: Config
) -> None:
    file = tmp_path / "ring.toml"
    file.write_text('hash_tag = "xx"\nservers = []\n')
    told = config("set", str(file), status=2).splitlines()
    assert told[0].startswith("error: the ring has 0 servers")
    assert told[1].startswith("error: hash_tag 'xx'")
    assert not (tmp_path / "meta").exists()
    assert "cannot be read" in config("set", str(tmp_path / "nothing"), status=2)
    assert "ring name" in config("get", "--ring", "a/b", status=2)


def test_rings_are_chosen_by_name(tmp_path: Path, config: Config) -> None:
    config("set", written(tmp_path, ring("a")), "--ring", "one")
    config("set", written(tmp_path, ring("b")), "--ring", "two")
    assert json.loads(config("get", "--ring", "one"))["servers"][0]["name"] == "a"
    assert "ring 'default' has no configuration" in config("history", status=1)


def test_a_dry_run_shows_how_many_files_would_move(tmp_path: Path, config: Config) -> None:
    def dry_run(configuration: RingConfiguration, *more: str) -> str:
        return config("set", written(tmp_path, configuration), "--dry-run", *more)

    assert "it is good; ring 'default' has no configuration" in dry_run(ring("a"))
    config("set", written(tmp_path, ring("a", "b", "c")))
    same = dry_run(ring("a", "b", "c"))
    assert same.startswith("it is good, and the same as version 1\n")
    shown = json.loads(dry_run(ring("a", "b", "c", "d"), "--format", "json"))
    assert (shown["version"], shown["files"], shown["is_same"]) == (1, 10_000, False)
    by_name = {row["server"]: (row["before"], row["after"]) for row in shown["servers"]}
    # What moves is what the new server gets: a fourth, more or less.
    assert by_name["d"] == (0, shown["moved"])
    assert 1_500 < shown["moved"] < 3_500
    assert sum(after for _, after in by_name.values()) == 10_000
    assert "files before" in dry_run(ring("x", "y"))
    assert "10000 of 10000 files, 100.0%" in dry_run(ring("x", "y"))
    assert json.loads(config("get"))["version"] == 1


def test_a_metastore_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert raftwood(["clogs", "config", "get"]) == 2
    assert "name one metastore" in capsys.readouterr().err
