"""Go libraries of others: the clients of Loki, Fluent and Elasticsearch, and a sender of syslog."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from raftwood.loghub.server.ways_in.settings import WaysInSettings
from tests.kits.loghub.sls_programs import ways_in_go_program
from tests.kits.loghub.ways_in import LOGSTORE, PROJECT, Stored, WaysInKit, ways_in_kit
from tests.kits.running import run

COUNT = 20
SECONDS_MAX = 60


def send(kit: WaysInKit, way: str, port: int) -> None:
    given = {
        "url": kit.url,
        "address": f"127.0.0.1:{port}",
        "port": port,
        "id": kit.writer.id,
        "secret": kit.writer.secret,
        "logstore": LOGSTORE,
        "count": COUNT,
    }
    ended = subprocess.run(
        [str(ways_in_go_program()), way, json.dumps(given)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def sent(folder: Path, way: str, field: str) -> list[Stored]:
    local = ("127.0.0.0/8",)
    settings = WaysInSettings(
        syslog_listen="127.0.0.1:0",
        syslog_project=PROJECT,
        syslog_logstore=LOGSTORE,
        syslog_peers=local,
        fluent_listen="127.0.0.1:0",
        fluent_project=PROJECT,
        fluent_logstore=LOGSTORE,
        fluent_peers=local,
    )

    async def main() -> list[Stored]:
        async with ways_in_kit(folder, settings) as kit:
            sockets = kit.sockets.syslog if way == "syslog" else kit.sockets.fluent
            await asyncio.to_thread(send, kit, way, sockets.ports[0])
            return await kit.stored_when(COUNT)

    stored = run(main())
    assert [each.contents[field] for each in stored] == [
        f"line {number}" for number in range(COUNT)
    ]
    return stored


@pytest.mark.needs("ways_in_go")
def test_lines_of_the_loki_client_are_stored(tmp_path: Path) -> None:
    stored = sent(tmp_path, "loki", "line")
    assert stored[0].tags == {"app": "shop", "quoted": 'a "b"\n'}


@pytest.mark.needs("ways_in_go")
def test_events_of_the_fluent_logger_are_acked_and_stored(tmp_path: Path) -> None:
    stored = sent(tmp_path, "fluent", "line")
    assert stored[3].contents["number"] == "3"
    assert stored[0].tags == {"tag": "shop"}


@pytest.mark.needs("ways_in_go")
def test_messages_of_a_syslog_writer_are_stored(tmp_path: Path) -> None:
    stored = sent(tmp_path, "syslog", "message")
    assert stored[0].contents["facility"] == "local4"
    assert stored[0].contents["severity"] == "notice"


@pytest.mark.needs("ways_in_go")
def test_documents_of_the_elasticsearch_client_are_stored(tmp_path: Path) -> None:
    sent(tmp_path, "elasticsearch", "line")
