"""`raftwood raft recover` on the folder of a store that is stopped."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from tests.kits.raft.host_cluster import GROUP, NETWORK, Lines
from tests.kits.running import run

from raftwood.base.errors import InvalidInput, StoreLocked
from raftwood.cli.raft import recover_app
from raftwood.disk.real_environment import real_environment
from raftwood.raft.node_host import NodeHost

MEMBERS = {1: "127.0.0.1:1", 2: "127.0.0.1:2", 3: "127.0.0.1:3"}


async def _open(environment: Any, folder: Path) -> NodeHost:
    host = await NodeHost.open(environment, str(folder), cluster="test", store=1, network=NETWORK)
    await host.start_group(GROUP, Lines, members=MEMBERS)
    return host


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a store that has a group of three, whose others never came."""

    async def main() -> None:
        with real_environment() as environment:
            await (await _open(environment, tmp_path / "store")).close()

    run(main())
    return tmp_path / "store"


def _recover(folder: Path, *options: str, members: str = "1=127.0.0.1:1") -> Any:
    named = ("--data-folder", str(folder), "--group", str(GROUP), "--members", members)
    return recover_app([*named, *options], exit_on_error=False, result_action="return_value")


def test_it_tells_what_it_does_and_the_store_leads_afterwards(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _recover(folder, "--yes") == 0
    told = capsys.readouterr().out
    assert "store 1 has group 1 up to entry 3 of term 1" in told
    assert "What only other stores had is lost" in told
    assert "given up: 2, 3" in told

    async def main() -> None:
        with real_environment() as environment:
            host = await _open(environment, folder)
            try:
                async with asyncio.timeout(60):
                    await host.read(GROUP, b"count", timeout_ms=10_000)
                assert await host.propose(GROUP, b"a line", timeout_ms=10_000) == b"1"
                assert host.status(GROUP).voters == (1,)
            finally:
                await host.close()

    run(main())


def test_without_yes_it_asks_or_refuses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(InvalidInput, match="give --yes"):
        _recover(folder)
    terminal = io.StringIO("no\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    assert _recover(folder) == 1


def test_members_that_make_no_sense_are_refused(folder: Path) -> None:
    for members in ("", "1", "one=127.0.0.1:1", "0=127.0.0.1:1", "1=a:1,1=b:2"):
        with pytest.raises(InvalidInput, match="each store once"):
            _recover(folder, "--yes", members=members)


def test_a_folder_in_use_is_refused(folder: Path) -> None:
    async def main() -> None:
        with real_environment() as environment:
            host = await _open(environment, folder)
            try:
                with pytest.raises(StoreLocked):
                    await asyncio.to_thread(_recover, folder, "--yes")
            finally:
                await host.close()

    run(main())
