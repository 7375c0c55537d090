"""`raftwood ship`: files through a gateway's receiver into a logstore, each line once."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from unittest.mock import Mock

import pytest
from tests.kits.app.gateway_thread import START_S_MAX
from tests.kits.loghub.memory_logs import MemoryLogs
from tests.kits.loghub.streams import values_of
from tests.kits.ports import free_ports

from raftwood.app.command_line import run
from raftwood.app.gateway_server import GatewayServer
from raftwood.app.settings import Settings
from raftwood.app.ship_status import COUNTERS, read_status, show_ship
from raftwood.base.configuration import compose
from raftwood.base.metrics import Metrics
from raftwood.clogs.client.counters import ServerCounters
from raftwood.clogs.tail.counters import TailCounters
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.batches import HEAD_BYTES, decode_head
from raftwood.loghub.compression import decompress
from raftwood.loghub.model import AccessKey, Role
from raftwood.metastore.file_store import FileMetaStore


class Receiver:
    """A gateway that takes lines, on a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._is_started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._server: GatewayServer
        self.key: AccessKey

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._is_started.wait(START_S_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S_MAX)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "RAFTWOOD_CLOGS_CLIENT__SERVERS": self._server.clogs_address,
            "RAFTWOOD_CLOGS_CLIENT__ACCESS_KEY": self.key.id,
            "RAFTWOOD_CLOGS_CLIENT__ACCESS_SECRET": self.key.secret,
        }

    def lines(self) -> list[str]:
        return asyncio.run_coroutine_threadsafe(self._lines(), self._loop).result(START_S_MAX)

    async def _lines(self) -> list[str]:
        streams = self._server.gateway.streams
        found: list[str] = []
        at = await streams.cursor("p", "s", 0, "begin")
        while True:
            pulled = await streams.pull("p", "s", 0, at)
            if not pulled.batches:
                return found
            at = pulled.next
            for each in pulled.batches:
                head = decode_head(each.data)
                body = memoryview(each.data)[HEAD_BYTES:]
                found += values_of(bytes(decompress(body, head.codec, raw_bytes=head.raw_bytes)))

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        flags = (
            f"gateway.listen=127.0.0.1:{free_ports(1)[0]}",
            "gateway.http_listen=",
            "clogs.listen=127.0.0.1:0",
            "clogs.project=p",
            "clogs.logstore=s",
        )
        settings = compose(Settings, flags=flags).settings
        with real_environment() as environment:
            store = await FileMetaStore.open(environment, str(self._folder / "metastore"))
            self._server = await GatewayServer.start(
                environment, settings, store, MemoryLogs(), metrics=Metrics()
            )
            gateway = self._server.gateway
            await gateway.catalog.create_project("p")
            await gateway.catalog.create_logstore("p", "s", shard_count=1)
            self.key = await gateway.access.create({"p": Role.WRITER})
            self._is_started.set()
            await self._stop.wait()
            await self._server.close()
            await store.close()


@pytest.fixture
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with Receiver(tmp_path) as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started


def ship(folder: Path, *arguments: str) -> int:
    return run(["ship", "--state", str(folder / "state"), "--once", *arguments])


def test_files_are_shipped_once_and_the_next_run_goes_on(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\nend")
    assert ship(tmp_path, f"{tmp_path}/*.log", "--name", "{base}") == 0
    assert receiver.lines() == ["one", "two", "end"]
    assert "3 lines of 11 bytes are stored" in capsys.readouterr().out
    with log.open("a") as file:
        file.write("\nthree\n")
    assert ship(tmp_path, str(log), "--name", "{base}") == 0
    assert receiver.lines() == ["one", "two", "end", "three"]
    status = read_status(str(tmp_path / "state" / "status.json"))
    assert (status.tail.counters.lines, status.tail.behind_bytes) == (1, 0)
    assert status.shipper.counters.acked == 1
    assert [each.name for each in status.tail.file_list] == ["a.log"]


def test_a_settings_file_says_how(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "a.log").write_text("mail me@example.com\n  and more\nticket 4711\n")
    settings = tmp_path / "ship.toml"
    settings.write_text(
        f"paths = ['{tmp_path}/*.log']\n"
        "masks = ['emails']\n"
        "multiline = {continue = '^\\s'}\n"
        "[[mask_rules]]\n"
        "name = 'ticket'\n"
        "pattern = 'ticket [0-9]+'\n"
        "replacement = 'ticket #'\n"
    )
    assert ship(tmp_path, "--settings", str(settings)) == 0
    assert receiver.lines() == ["mail ***@***\n  and more", "ticket #"]
    status = json.loads((tmp_path / "state" / "status.json").read_bytes())
    assert status["masked"] == {"emails": 1, "ticket": 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no file is named"),
        ("paths = [", "is no TOML"),
        ("paths = ['/x']\ncolour = 1", "colour"),
        ("paths = ['/x']\nmasks = ['nothing']", "no masking rule 'nothing'"),
    ],
)
def test_mistakes_end_with_status_2(
    tmp_path: Path,
    receiver: Receiver,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    told: str,
) -> None:
    arguments = []
    if text is not None:
        (tmp_path / "ship.toml").write_text(text)
        arguments = ["--settings", str(tmp_path / "ship.toml")]
    assert ship(tmp_path, *arguments) == 2
    assert told in capsys.readouterr().err
    assert receiver.lines() == []


def test_without_an_access_key_nothing_is_shipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ship(tmp_path, f"{tmp_path}/a.log") == 2
    assert "access key" in capsys.readouterr().err


def test_every_counter_of_a_tailer_is_a_metric() -> None:
    assert set(COUNTERS) == set(TailCounters.__struct_fields__)


def test_metrics_tell_what_is_counted() -> None:
    metrics, tailer, shipper = Metrics(), Mock(), Mock()
    tailer.counters = TailCounters(lines=3)
    tailer.status.return_value.behind_bytes = 17
    tailer.status.return_value.files = 2
    shipper.counters.servers = {"a:1": ServerCounters(acked=3)}
    show_ship(metrics, tailer, shipper)
    for name in ("open_files", "missing_files"):
        setattr(tailer.status.return_value, name, 0)
    tailer.counters.lines += 1
    text = metrics.render().decode()
    assert "raftwood_ship_lines_total 4.0" in text
    assert "raftwood_ship_behind_bytes 17.0" in text
    assert 'raftwood_ship_server_lines_acked_total{server="a:1"} 3.0' in text


class Process:
    """`raftwood ship` as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._ready = folder / "ready"
        self._ready.unlink(missing_ok=True)
        settings = folder / "ship.toml"
        settings.write_text("batch_bytes_max = 4096\nline_bytes_max = 4096\ngrace_ms = 100\n")
        self._process = subprocess.Popen(
            (
                *(sys.executable, "-m", "raftwood.app", "ship", f"{folder}/*.log"),
                *("--state", str(folder / "state"), "--name", "{base}"),
                *("--settings", str(settings)),
                *("--ready-file", str(self._ready), "--set", "http.listen=127.0.0.1:0"),
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        until(self._ready.exists)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.end(signal.SIGKILL)

    def end(self, number: int) -> tuple[int, str]:
        self._process.send_signal(number)
        _, told = self._process.communicate(timeout=START_S_MAX)
        return self._process.returncode, told.decode()


def until(condition: Any) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_where_it_was(tmp_path: Path, receiver: Receiver) -> None:
    log = tmp_path / "a.log"
    written: list[str] = []

    def write(count: int) -> None:
        with log.open("a") as file:
            for _ in range(count):
                written.append(f"line {len(written)}")
                file.write(written[-1] + "\n")

    write(10_000)
    with Process(tmp_path) as process:
        until(receiver.lines)
        assert process.end(signal.SIGKILL)[0] == -signal.SIGKILL
    write(1000)
    log.rename(tmp_path / "a.log.1")
    write(1000)
    with Process(tmp_path) as process:
        until(lambda: len(receiver.lines()) >= len(written))
        status, told = process.end(signal.SIGTERM)
    assert status == 0, told
    assert receiver.lines() == written
    assert not os.path.exists(tmp_path / "state" / "status.json.new")
