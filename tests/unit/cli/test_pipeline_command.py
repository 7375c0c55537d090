"""`raftwood pipeline` where nothing has to run: lists, statuses, and what is missing."""

import json
import os
from pathlib import Path

import pytest

from raftwood.cli.command_line import run
from raftwood.cli.pipeline import JobDisplay, progress_line
from raftwood.pipeline.jobs.job import JobProgress, JobState, write_status

FILE = """
[loghub]
gateways = "127.0.0.1:7401"
access_key = "id"
access_secret = "secret"

[jobs.errors]
kind = "transform"
from = "web/access"
to = "web/errors"
sql = "SELECT * FROM input"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "web.toml"
    path.write_text(FILE)
    return str(path)


def test_the_kinds_of_jobs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "list", "--format", "json"]) == 0
    kinds = [each["kind"] for each in json.loads(capsys.readouterr().out)]
    assert kinds == [
        "transform",
        "aggregate",
        "sessionize",
        "keys",
        "archive",
        "replay",
        "backfill",
    ]


def test_the_jobs_of_a_file_are_listed_without_the_secret(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "list", file, "--format", "json"]) == 0
    output = capsys.readouterr().out
    assert json.loads(output)[0]["to"] == "web/errors"
    assert "secret" not in output


def test_a_status_tells_of_the_last_run_and_fails_where_that_failed(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = ["pipeline", "status", file, "--format", "json"]
    assert run(status) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "new"
    folder = tmp_path / "web-pipeline" / "errors"
    folder.mkdir(parents=True)
    progress = JobProgress(
        job="errors", kind="transform", state=JobState.FAILED, error="no", pid=os.getpid()
    )
    write_status(str(folder), progress)
    assert run(status) == 1
    assert json.loads(capsys.readouterr().out)[0]["error"] == "no"


def test_a_job_that_is_not_in_the_file_is_refused_before_spark_starts(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "run", file, "warnings"]) == 2
    assert "no job 'warnings': it has errors" in capsys.readouterr().err


def test_without_spark_the_command_says_how_to_get_it(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for command in (["pipeline", "run", file], ["pipeline", "list"]):
        assert run(command) == 2
        assert "pip install 'raftwood[spark]" in capsys.readouterr().err
    assert run(["demo", "pipeline"]) == 2
    assert "pip install 'raftwood[demo]" in capsys.readouterr().err


def test_progress_is_a_line_where_nobody_looks_at_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = JobProgress(
        job="errors",
        kind="transform",
        state=JobState.RUNNING,
        batches=2,
        rows=12_000,
        rows_per_s=3_456.7,
        lag=3,
        late=1,
    )
    with JobDisplay(["errors"]) as display:
        display.say("starting")
        display.show(progress)
    line = "errors: running, 12,000 rows, 3,457 rows/s, 3 batches behind, 1 late"
    assert capsys.readouterr().err == f"starting\n{line}\n"
    assert progress_line(JobProgress(job="a", kind="x")) == "a: new"
