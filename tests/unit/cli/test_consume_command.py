"""What `raftwood consume` does with batches, and what it refuses."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.kits.running import run

from raftwood.base.errors import InvalidConfiguration, InvalidInput, Unavailable
from raftwood.base.position import Position
from raftwood.cli.command_line import run as raftwood
from raftwood.cli.consume import Running, factory_of
from raftwood.cli.lease_target import LEASES, LeaseTarget, lease_store
from raftwood.cli.options import DEFAULTS
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.client.pulled_batches import LogRecord
from raftwood.loghub.consumer.checkpoints import CheckpointTracker
from raftwood.loghub.consumer.source import ShardBatch


class Batch:
    def records(self) -> Sequence[LogRecord]:
        fields: dict[str, str | bytes] = {"message": "hello"}
        return [LogRecord(10**18, fields, "topic", "host", {}, 3, Position(7))] * 2


class Tracker:
    shard_id = "3"
    epoch = 5
    saved = 0

    def save_checkpoint(self, *, persistent: bool) -> None:
        assert persistent
        self.saved += 1


def process(command: str) -> Tracker:
    tracker = Tracker()
    Running(command).process([cast("ShardBatch", Batch())], cast("CheckpointTracker", tracker))
    return tracker


def test_a_command_gets_records_as_json_lines(tmp_path: Path) -> None:
    target = tmp_path / "out"
    tracker = process(f'echo "$RAFTWOOD_SHARD $RAFTWOOD_EPOCH" > {target}; cat >> {target}')
    first, *records = target.read_text().splitlines()
    assert first == "3 5"
    assert [json.loads(line)["fields"] for line in records] == [{"message": "hello"}] * 2
    assert tracker.saved == 1


def test_a_command_that_fails_is_given_its_records_again() -> None:
    with pytest.raises(Unavailable, match="ended with status 3"):
        process("exit 3")


def test_a_class_is_found_in_a_module_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine_to_consume.py").write_text("class Mine: pass\nnumber = 1\n")
    made: Any = factory_of("mine_to_consume:Mine")
    assert type(made()).__name__ == "Mine"
    with pytest.raises(InvalidConfiguration, match="makes no processor"):
        factory_of("mine_to_consume:number")
    with pytest.raises(InvalidConfiguration, match="is not to be found"):
        factory_of("mine_to_consume:Absent")
    with pytest.raises(InvalidConfiguration, match="is not to be found"):
        factory_of("absent_module_here:Mine")
    with pytest.raises(InvalidInput, match="names no class"):
        factory_of("mine_to_consume")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--run=cat", "--processor=a:B"), "not both"),
        (("--timeout=10ms",), "give 1s at least"),
        (("--timeout=soon",), "--timeout 'soon'"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raftwood(["consume", "p/s", "--group=g", *options]) != 0
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "setting", "file"),
    [
        (None, None, "raftwood-leases.sqlite"),
        (None, "sqlite:///set.sqlite", "set.sqlite"),
        ("sqlite:///given.sqlite", "sqlite:///set.sqlite", "given.sqlite"),
    ],
)
def test_the_lease_store_is_named_by_the_option_or_the_settings(
    option: str | None,
    setting: str | None,
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if setting is not None:
        monkeypatch.setenv("RAFTWOOD_LOGHUB_CLIENT__LEASE_STORE", setting)

    async def main() -> None:
        target = LeaseTarget(option)
        with real_environment() as environment:
            async with lease_store(environment, target, DEFAULTS, stream="p/s", group="g") as store:
                await store.open()
                await store.close()

    run(main())
    assert [path.name for path in tmp_path.glob("*.sqlite")] == [file]


def test_a_store_whose_library_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "raftwood.loghub.consumer.sql_store", None)

    async def main() -> None:
        with real_environment() as environment:
            async with lease_store(environment, LEASES, DEFAULTS, stream="p/s", group="g"):
                pass

    with pytest.raises(InvalidConfiguration, match=r"raftwood\[sql\]"):
        run(main())
