"""A store loses the newest segment of its log, and starts before the only one that has all."""

import asyncio
import json
import signal
from pathlib import Path

from raftwood.logservice.hakeeper.commands import ClusterView
from raftwood.raft.registry import GROUP_MAX
from tests.kits.logservice.load import read_all
from tests.kits.logservice.processes import LogNode, LogProcesses, log_stores
from tests.kits.processes import RAFTWOOD
from tests.kits.running import run

_EARLY, _LATE = 5, 40
_RECORD_BYTES = 50_000


def _record(number: int) -> bytes:
    return b"%d " % number + b"." * _RECORD_BYTES


def _newest_with_records(node: LogNode) -> Path:
    segments = sorted(node.folder.glob("log/*.segment"))
    assert len(segments) > 1
    return [path for path in segments if b"." * 1000 in path.read_bytes()][-1]


async def _stop(stores: LogProcesses, *chosen: int) -> None:
    for store in chosen:
        stores.nodes[store].signal(signal.SIGTERM)
    for store in chosen:
        assert await stores.nodes[store].ended() == 0


def _is_damage_told(view: ClusterView) -> bool:
    return any("log-damaged" in alarm.text and alarm.store == 1 for alarm in view.alarms)


def test_records_that_two_stores_acked_are_left_when_one_lost_its_newest_segment(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with log_stores(tmp_path) as stores:
            stores.expected_errors = (
                "the log is damaged and set aside, and the other stores fill a new one",
                "replica is damaged",
            )
            await stores.start()
            await stores.runs()
            client = await stores.client()
            for number in range(_EARLY):
                await client.append(_record(number))
            await _stop(stores, 3)
            for number in range(_EARLY, _LATE):
                await client.append(_record(number))
            await _stop(stores, 1, 2)
            _newest_with_records(stores.nodes[1]).unlink()
            await stores.start(1, 3)
            await stores.nodes[1].says("repair waits")
            await stores.start(2)
            await stores.runs()
            records = await read_all(client)
            assert [bytes(record.payload) for record in records] == [
                _record(number) for number in range(_LATE)
            ]
            await stores.seen("what happened to the log", _is_damage_told)
            assert (stores.nodes[1].folder / "log-2").is_dir()

    run(scenario())


async def _run(*arguments: str, status: int = 0) -> str:
    """What a command prints, and its error."""
    process = await asyncio.create_subprocess_exec(
        *RAFTWOOD, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == status, output.decode()
    return output.decode()


def test_where_two_of_three_logs_are_damaged_the_status_names_a_command_that_helps(
    tmp_path: Path,
) -> None:
    """HAKeeper is one of the shards without a quorum, so that it cannot tell."""

    async def scenario() -> None:
        async with log_stores(tmp_path) as stores:
            stores.expected_errors = (
                "the log is damaged and set aside, and the other stores fill a new one",
                "replica is damaged",
            )
            await stores.start()
            await stores.runs()
            client = await stores.client()
            for number in range(_LATE):
                await client.append(_record(number))
            await _stop(stores, *stores.first)
            for store in (1, 2):
                _newest_with_records(stores.nodes[store]).unlink()
            await stores.start()
            for store in (1, 2):
                await stores.nodes[store].says("repair waits", group=0)
            told = await _run("cluster", "status", f"--config={tmp_path}/cluster.toml", status=1)
            assert "store 1" in told
            assert told.count("halted, to be repaired") == 2
            assert (
                "run 'raftwood raft recover --data-folder FOLDER --group 0 --members "
                "STORE=HOST:PORT'" in told
            )
            await _stop(stores, *stores.first)
            kept = stores.nodes[3]
            report = json.loads(await _run("store", "check", str(kept.folder), "--format=json"))
            for group in [each["group"] for each in report["groups"]]:
                if group <= GROUP_MAX:
                    await _run(
                        *("raft", "recover", f"--data-folder={kept.folder}", f"--group={group}"),
                        *(f"--members=3={kept.address}", "--yes"),
                    )
            await stores.start(3)
            records = await read_all(await stores.client())
            assert [bytes(record.payload) for record in records] == [
                _record(number) for number in range(_LATE)
            ]

    run(scenario())
