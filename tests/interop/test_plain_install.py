"""`pip install .` without extras: every command that needs none works, the others name theirs."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftwood.server.standalone import PORTS
from tests.kits.install.fresh_environment import build_wheel, make_environment
from tests.kits.ports import consecutive_ports

EVERY_HELP = Path(__file__).parent / "python" / "every_help.py"
COMMANDS_MIN = 150
WAIT_S_MAX = 120.0

pytestmark = pytest.mark.timeout(600)


class Plain:
    """The installed commands, run in a folder of their own."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python = python
        self.folder = folder
        # What the tests themselves can import, it cannot; what it compiles, it compiles once.
        dropped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        self.environment = {
            name: value for name, value in os.environ.items() if name not in dropped
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            (str(self.python.with_name("raftwood")), *arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, given: str = "") -> tuple[int, str, str]:
        """The exit status, the output, and the errors, in which there is never a traceback."""
        with self.start(*arguments) as process:
            try:
                output, errors = process.communicate(given, timeout=WAIT_S_MAX)
            finally:
                process.kill()
        assert "Traceback" not in errors
        return process.returncode, output, errors

    def done(self, *arguments: str, given: str = "") -> str:
        status, output, errors = self.run(*arguments, given=given)
        assert status == 0, errors
        return output


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    folder = tmp_path_factory.mktemp("plain")
    wheel = build_wheel(folder / "wheel")
    return Plain(make_environment(folder / "environment", str(wheel)), folder)


@pytest.fixture
def served(plain: Plain, tmp_path: Path) -> Iterator[Plain]:
    """All of Raftwood runs, and commands know how to reach it."""
    ready = tmp_path / "ready.json"
    process = plain.start(
        "standalone",
        f"--data={tmp_path / 'data'}",
        f"--port-base={consecutive_ports(PORTS)}",
        f"--ready-file={ready}",
    )
    with process:
        try:
            deadline = time.monotonic() + WAIT_S_MAX
            while not ready.exists():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            user = Plain(plain.python, tmp_path)
            user.environment |= access(json.loads(ready.read_text()))
            yield user
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=WAIT_S_MAX)
            assert (process.returncode, "Traceback" in errors) == (0, False), errors
        finally:
            process.kill()


def access(parts: dict[str, Any]) -> dict[str, str]:
    loghub, kv = parts["loghub"], parts["kv"]
    return {
        "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS": loghub["native"],
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY": loghub["access_key_id"],
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET": loghub["access_key_secret"],
        "RAFTWOOD_ZEPPELIN_CLIENT__ADDRESSES": f"{kv['host']}:{kv['port']}",
        "RAFTWOOD_ZEPPELIN_CLIENT__USER": kv["user"],
        "RAFTWOOD_ZEPPELIN_CLIENT__PASSWORD": kv["password"],
    }


def test_every_command_tells_its_help(plain: Plain) -> None:
    done = subprocess.run(
        (plain.python, EVERY_HELP),
        env=plain.environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) >= COMMANDS_MIN
    for path, status, text in answers:
        assert (status, f"Usage: raftwood {path}".rstrip() in text) == (0, True), (path, text)


@pytest.mark.parametrize("path", ["", "standalone", "demo pipeline", "kv cluster expand"])
def test_a_process_tells_the_help(plain: Plain, path: str) -> None:
    assert f"Usage: raftwood {path}".rstrip() in plain.done(*path.split(), "--help")


def test_a_misspelt_command_is_told_with_the_one_that_was_meant(plain: Plain) -> None:
    status, _, errors = plain.run("standalon")
    assert status == 2
    assert 'Did you mean "standalone"?' in errors
    status, _, errors = plain.run("kv", "tabel")
    assert status == 2
    assert 'Did you mean "table"?' in errors


def test_a_stream_and_a_table_are_written_and_read(served: Plain) -> None:
    served.done("project", "create", "web")
    served.done("logstore", "create", "web/access")
    served.done("produce", "web/access", given="one\ntwo\n")
    read = served.done("tail", "web/access", "--from", "begin")
    assert [line.split()[-1] for line in read.splitlines()] == ["one", "two"]
    served.done("kv", "set", "greeting", "hello")
    assert "hello" in served.done("kv", "get", "greeting")


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("pipeline", "list"), "spark"),
        (("pipeline", "run", "web.toml"), "spark"),
        (("pipeline", "status", "web.toml"), "spark"),
        (("demo", "pipeline"), "demo"),
        (("demo", "consumers"), "sql"),
        (("meta", "status", "--zookeeper", "localhost:1"), "zookeeper"),
        (("dlog", "list", "--bookkeeper", "localhost:1"), "bookkeeper"),
        (("ledger", "list", "--bookkeeper", "localhost:1"), "bookkeeper"),
        (("kv", "backup", "verify", "--from", "backup"), "arrow"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else value,
)
def test_a_command_names_the_extra_that_it_needs(
    plain: Plain, arguments: tuple[str, ...], extra: str
) -> None:
    _check_extra(plain, arguments, extra)


def test_a_command_of_a_running_server_names_the_extra_that_it_needs(served: Plain) -> None:
    served.done("project", "create", "web")
    served.done("logstore", "create", "web/access")
    _check_extra(served, ("consume", "web/access", "--group", "g"), "sql")
    for command in ("show", "drain"):
        _check_extra(served, ("group", command, "web/access", "g"), "sql")
    _check_extra(served, ("kv", "backup", "--to", "backup"), "arrow")
    _check_extra(served, ("kv", "restore", "--from", "backup"), "arrow")


def _check_extra(plain: Plain, arguments: tuple[str, ...], extra: str) -> None:
    status, _, errors = plain.run(*arguments)
    assert status in (1, 2)
    assert errors.startswith("error: ")
    assert f"pip install 'raftwood[{extra}]'" in errors
