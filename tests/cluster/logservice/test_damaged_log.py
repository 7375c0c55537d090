"""A store loses the newest segment of its log, and starts before the only one that has all."""

import signal
from pathlib import Path

from raftwood.logservice.hakeeper.views import ClusterView
from tests.kits.logservice.load import read_all
from tests.kits.logservice.processes import LogNode, LogProcesses, log_stores
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
