"""The notebook and the commands, as users start them."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftwood.cli import command_line
from raftwood.pipeline.options import GATEWAYS_VARIABLE, KEY_VARIABLE, SECRET_VARIABLE
from tests.kits.pipeline.kit import PROJECT, Hub
from tests.kits.pipeline.processes import RAFTWOOD, REPOSITORY, TIMEOUT_S, environment
from tests.kits.pipeline.quick_python import python_of_spark

NOTEBOOK = REPOSITORY / "notebooks" / "pipeline.ipynb"


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = hub.standalone.loghub
    monkeypatch.setenv(GATEWAYS_VARIABLE, part.native)
    monkeypatch.setenv(KEY_VARIABLE, part.access_key)
    monkeypatch.setenv(SECRET_VARIABLE, part.access_secret)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in cells), "outputs are not for the repository"
    # The notebook finds the session of this process, and other tests want to find it too.
    program = "\n\n".join(code)
    for written, meant in (("LINES = 20_000", "LINES = 2_000"), ("spark.stop()", "")):
        assert written in program
        program = program.replace(written, meant)
    names: dict[str, Any] = {}
    exec(compile(program, str(NOTEBOOK), "exec"), names)
    assert names["spark"] is hub.spark
    assert "2000 rows archived" in capsys.readouterr().out


def test_commands_run_list_and_show_jobs_and_end_in_order_when_told_to(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(command: str) -> Any:
        assert command_line.run(["pipeline", command, job, "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)[0]

    job = str(tmp_path / "job.toml")
    source, target = hub.logstore(), hub.logstore()
    hub.fill(source, range(100))
    part = hub.standalone.loghub
    Path(job).write_text(f"""
[loghub]
gateways = "{part.native}"
access_key = "{part.access_key}"
access_secret = "{part.access_secret}"

[jobs.copy]
kind = "transform"
from = "{PROJECT}/{source}"
to = "{PROJECT}/{target}"
fields = "n int"
sql = "SELECT n FROM input"
trigger = "1 second"
""")
    assert told("list")["to"] == f"{PROJECT}/{target}"
    assert told("status")["state"] == "new"
    with subprocess.Popen(
        [*RAFTWOOD, "pipeline", "run", "job.toml", "--format", "json"],
        cwd=tmp_path,
        env=environment(tmp_path, **python_of_spark()),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        _wait_for_rows(tmp_path / "job-pipeline" / "copy" / "status.json", 100, running)
        shown = told("status")
        assert (shown["state"], shown["rows"], shown["pid"]) == ("running", 100, running.pid)
        running.send_signal(signal.SIGTERM)
        output, errors = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 0, errors
    assert json.loads(output)[0]["state"] == "stopped"
    assert "copy: running, 100 rows" in errors
    assert "WARN" not in errors
    assert hub.numbers(target) == list(range(100))


def _wait_for_rows(path: Path, rows: int, running: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not (path.exists() and msgspec.json.decode(path.read_bytes())["rows"] >= rows):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
