import asyncio
import json
from pathlib import Path

import pytest

from raftwood.cli.command_line import run as raftwood
from raftwood.disk.real_environment import real_environment
from raftwood.disk.segment_log import Run, SetState, TruncateHead
from raftwood.disk.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    async def fill() -> None:
        with real_environment() as environment:
            store = await Store.open(environment, f"{tmp_path}/store", cluster="c", store=4)
            await store.log.commit(Run(1, 1, 1, 3, b"abc"), SetState(1, b"vote"))
            await store.log.commit(Run(2, 5, 1, 1, b"\xff"), TruncateHead(1, 1))
            await store.close()

    asyncio.run(fill())
    return tmp_path / "store"


def test_check_tells_what_is_in_a_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert raftwood(["store", "check", str(store)]) == 0
    output = capsys.readouterr().out
    assert "store 4 of cluster c" in output
    assert "intact" in output
    assert raftwood(["store", "check", str(store), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["damages"] == []
    assert report["groups"][0] == {
        "group": 1,
        "head": 2,
        "next_index": 4,
        "runs": 1,
        "state_bytes": 4,
    }


def test_check_changes_nothing(store: Path) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    assert raftwood(["store", "check", str(store)]) == 0
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_check_names_damage_and_remedy(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = store / "log/0000000001.segment"
    data = bytearray(segment.read_bytes())
    data[64 + 64 + 48] ^= 1  # the first record's payload
    segment.write_bytes(data)
    assert raftwood(["store", "check", str(store)]) == 1
    output = capsys.readouterr().out
    assert f"DAMAGED: {segment} at offset 64" in output
    assert "remedy: " in output
    assert raftwood(["store", "dump", str(store)]) == 1
    output = capsys.readouterr().out
    assert "DAMAGED" in output
    assert "truncate-head" in output, "what is whole behind the damage is still shown"


def test_dump_lists_records_in_log_order(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert raftwood(["store", "dump", str(store), "--format", "json", "--payload"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in rows] == ["run", "state", "run", "truncate-head"]
    assert rows[0]["payload"] == "616263"
    assert raftwood(["store", "dump", str(store), "--group", "2", "--format", "json"]) == 0
    assert [row["group"] for row in json.loads(capsys.readouterr().out)] == [2]
    assert raftwood(["store", "dump", str(store), "--limit", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["check", "/nowhere"], 1, "no Raftwood store in /nowhere"),
        (["dump", "/nowhere", "--limit", "0"], 2, "--limit 0"),
        (["check"], 2, "folder"),
        (["chekc", "x"], 2, "chekc"),
    ],
)
def test_mistakes_get_one_clear_line(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert raftwood(["store", *arguments]) == status
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message.lower() in error.lower()
    assert "Traceback" not in error


def test_a_store_in_use_is_not_checked(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def hold_and_check() -> int:
        with real_environment() as environment:
            held = await Store.open(environment, str(store), cluster="c", store=4)
            try:
                return await asyncio.to_thread(raftwood, ["store", "check", str(store)])
            finally:
                await held.close()

    assert asyncio.run(hold_and_check()) == 1
    assert "in use by another process" in capsys.readouterr().err
