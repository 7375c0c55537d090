"""A real bookie that lost its newest segment: nothing acked is cut off, and it is repaired."""

import json
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from raftwood.disk.segment_log.horizon import NAME, decode_horizon
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.errors import CannotRecover
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.metadata import LedgerConfig
from raftwood.server.standalone import PORTS
from tests.kits.dlog.bookie_processes import BookieProcesses, bookie_processes
from tests.kits.dlog.command_kit import Commands
from tests.kits.ports import consecutive_ports
from tests.kits.running import run
from tests.kits.server.running import running

ON_ALL, ACKED = 100, 140
SMALL = "--set=log.segment_bytes=65536"


def _newest_segment(log: Path) -> Path:
    """The newest that was begun: the log may have made the next one ahead of need."""
    horizon = decode_horizon((log / NAME).read_bytes())
    assert horizon is not None
    return log / f"{horizon.begun:010}.segment"


def test_a_bookie_that_lost_its_newest_segment_is_repaired_without_a_loss(tmp_path: Path) -> None:
    with bookie_processes(tmp_path, 3) as processes:
        ledger = run(_write(processes))
        run(_lose_and_recover(processes, ledger))
        b1, b2, b3 = processes.all
        operator = processes.stores
        rows = {row["bookie"]: row for row in operator.rows("bookie", "status")}
        assert rows[b1.id]["state"] == "began anew"
        assert rows[b1.id]["remedy"] == f"raftwood bookie repair {b1.id}"
        told = json.loads(operator.run("bookie", "repair", b1.id, "--format=json"))
        assert (told["failed"], [each["ledger"] for each in told["ledgers"]]) == (0, [ledger])
        assert told["copied"] > 0
        assert "1 ledgers of bookie" in operator.run("bookie", "repair", b1.id)
        rows = {row["bookie"]: row for row in operator.rows("bookie", "status")}
        assert (rows[b1.id]["state"], rows[b1.id]["ledgers"]) == ("running", 1)
        operator.run("bookie", "repair", "nobody:1", status=1, expect="there is no bookie nobody:1")
        operator.run("bookie", "repair", b1.id, f"--to={b1.id}", status=2, expect="leave it out")
        for each in (b2, b3):
            each.kill_now()
        run(_read_all(processes, ledger))


async def _write(processes: BookieProcesses) -> int:
    for each in processes.all:
        each.begin(SMALL)
    for each in processes.all:
        await each.ready()
    b3 = processes.all[2]
    async with processes.client() as (environment, store, bookies):
        client = LedgerClient(bookies, MetaLedgers(store, environment.random), environment)
        writer = await client.create(LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2))
        for number in range(ON_ALL):
            await writer.append(b"%d" % number + bytes(2_000))
        b3.pause()
        for number in range(ON_ALL, ACKED):
            await writer.append(b"%d" % number + bytes(2_000))
        ledger = writer.ledger
        await writer.abandon()
        await b3.kill()
        await client.close()
    return ledger


async def _lose_and_recover(processes: BookieProcesses, ledger: int) -> None:
    b1, b2, b3 = processes.all
    b3.begin(SMALL)
    await b3.ready()
    for each in (b1, b2):
        await each.kill()
    _newest_segment(b1.folder / "log").unlink()
    b1.begin(SMALL)
    assert await b1.ended() == 1
    assert f"raftwood bookie repair {b1.id}" in b1.tail()
    with pytest.raises(CannotRecover):
        await _read_all(processes, ledger)
    shutil.move(b1.folder, f"{b1.folder}.damaged")
    b1.begin(SMALL, "--begin-anew")
    await b1.ready()
    with pytest.raises(CannotRecover):
        await _read_all(processes, ledger)
    b2.begin(SMALL)
    await b2.ready()
    await _read_all(processes, ledger)


async def _read_all(processes: BookieProcesses, ledger: int) -> None:
    async with processes.client() as (environment, store, bookies):
        client = LedgerClient(bookies, MetaLedgers(store, environment.random), environment)
        try:
            reader = await client.open(ledger, recover=True)
            assert reader.last_confirmed == ACKED - 1
            entries = await reader.read(first=0, last=ACKED - 1)
            assert [bytes(each.data).rstrip(b"\0") for each in entries] == [
                b"%d" % number for number in range(ACKED)
            ]
        finally:
            await client.close()


def test_a_damaged_bookie_does_not_keep_a_standalone_from_starting(tmp_path: Path) -> None:
    data = tmp_path / "data"
    base = f"--port-base={consecutive_ports(PORTS)}"

    def started(*more: str) -> AbstractContextManager[dict[str, Any]]:
        return running("standalone", f"--data={data}", base, *more, folder=tmp_path)

    def operator(parts: dict[str, Any]) -> Commands:
        service = parts["logservice"]
        return Commands(f"--connect={service['address']}", f"--config={service['config']}")

    with started() as parts:
        commands = operator(parts)
        commands.run("dlog", "create", "kept")
        commands.append("kept", *("x" * 2_000 for _ in range(100)))
        commands.run("dlog", "rotate", "kept")
    _newest_segment(data / "bookie-1" / "log").unlink()
    with started() as parts:
        said = (tmp_path / "standalone.log").read_text()
        assert "raftwood bookie repair embedded-1" in said
        commands = operator(parts)
        assert len(commands.messages("kept", "--count=1000")) == 100
        states = {row["bookie"]: row["state"] for row in commands.json("bookie", "status")}
        assert states == {"embedded-1": "away", "embedded-2": "running", "embedded-3": "running"}
        away = [row["away"] for row in commands.json("ledger", "list")]
        assert ["embedded-1"] in away
    with started("--begin-anew=embedded-1") as parts:
        commands = operator(parts)
        told = commands.json("bookie", "repair", "embedded-1")
        assert told["failed"] == 0
        assert told["copied"] > 0
        states = {row["bookie"]: row["state"] for row in commands.json("bookie", "status")}
        assert set(states.values()) == {"running"}
        commands.append("kept", "more")
    assert (data / "bookie-1.damaged-1").is_dir()
