"""The parts of jobs that need no running Spark: triggers, times, progress, importing."""

import os
import sys
import threading
from pathlib import Path
from typing import cast

import pyarrow
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from raftwood.base.errors import InternalError, InvalidConfiguration
from raftwood.pipeline.jobs.job import (
    Job,
    JobAccess,
    JobContext,
    JobOptions,
    JobProgress,
    JobState,
    duration_s,
    function_named,
    lag_of,
    named,
    parse_trigger,
    read_status,
    write_status,
)
from raftwood.pipeline.jobs.query import shuffling
from raftwood.pipeline.jobs.replay import time_range, time_us
from raftwood.pipeline.jobs.transform import _made
from raftwood.pipeline.session import session_settings


def test_triggers_are_told_to_spark_in_its_words() -> None:
    assert parse_trigger("available-now").spark_arguments() == {"availableNow": True}
    assert parse_trigger("once").spark_arguments() == {"once": True}
    assert parse_trigger("10 seconds").spark_arguments() == {"processingTime": "10 seconds"}
    assert parse_trigger("10 seconds").interval_s == 10.0


@pytest.mark.parametrize("text", ["", "now", "0 seconds", "10", "-1 minute", "1 fortnight"])
def test_a_trigger_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="available-now"):
        parse_trigger(text)


def test_durations_have_units() -> None:
    assert [duration_s(text) for text in ("90 seconds", "1 minute", "1.5 hours", "2 days")] == [
        90.0,
        60.0,
        5400.0,
        172_800.0,
    ]


def test_times_without_a_zone_are_utc() -> None:
    assert time_us("1970-01-01T00:00:01") == 1_000_000
    assert time_us("1970-01-01T01:00:01+01:00") == 1_000_000
    assert time_us("1970-01-01T00:00:00.000001Z") == 1


def test_a_time_range_that_holds_nothing_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="earlier first"):
        time_range("2026-01-02", "2026-01-01")
    with pytest.raises(InvalidConfiguration, match="no time"):
        time_range("yesterday", None)


def test_lag_is_what_was_there_less_what_was_read() -> None:
    latest = {"shards": {"0": "50", "1": "20", "2": "7"}, "ended": [], "skipped": 0}
    end = {"shards": {"0": "40", "1": "20", "2": "7"}, "ended": [2], "skipped": 0}
    assert lag_of({"latestOffset": latest, "endOffset": end}) == 10
    assert lag_of({"latestOffset": None, "endOffset": end}) is None
    assert lag_of({"latestOffset": {"logOffset": 1}, "endOffset": {"logOffset": 0}}) is None


def test_a_status_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert read_status(folder, job="a", kind="transform").state is JobState.NEW
    progress = JobProgress(
        job="a", kind="transform", state=JobState.RUNNING, rows=7, pid=os.getpid()
    )
    written = write_status(folder, progress)
    assert written.updated_ms > 0
    assert read_status(folder, job="a", kind="transform") == written


def test_a_job_whose_process_is_gone_is_lost(tmp_path: Path) -> None:
    gone = 2**22 + 1  # above what Linux numbers processes with
    write_status(str(tmp_path), JobProgress(job="a", kind="x", state=JobState.RUNNING, pid=gone))
    assert read_status(str(tmp_path), job="a", kind="x").state is JobState.LOST


def test_what_a_file_names_is_found_or_the_mistake_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_rows.py").write_text("NUMBER = 1\ndef kept(row):\n    return row\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert function_named("users_rows:kept")({"a": 1}) == {"a": 1}
    for text, message in (
        ("users_rows", "module:name"),
        ("users_rows:lost", "has no 'lost'"),
        ("users_nothing:kept", "cannot be loaded"),
    ):
        with pytest.raises(InvalidConfiguration, match=message):
            named(text)
    with pytest.raises(InvalidConfiguration, match="no function"):
        function_named("users_rows:NUMBER")
    sys.modules.pop("users_rows")


def test_the_driver_of_a_cluster_can_be_reached_and_settings_go_before_ours() -> None:
    assert session_settings("local[2,4]", None)["spark.driver.bindAddress"] == "127.0.0.1"
    found = session_settings("spark://host:7077", {"spark.ui.enabled": "true"})
    assert not [name for name in found if name.startswith("spark.driver.")]
    assert found["spark.ui.enabled"] == "true"


def test_a_plan_that_shuffles_is_known() -> None:
    plain = """Project [n#1, (n#1 * n#1) AS Sort#2]
+- Filter (n#1 > 3)
   +- SubqueryAlias input
      +- View (`input`, [n#1])
         +- ~StreamingRelationV2 org.apache.spark.Join@1, loghub
"""
    assert shuffling(plain) is None
    assert shuffling(plain.replace("Filter (", "Aggregate [n#1], [")) == "Aggregate"
    assert shuffling("Distinct\n" + plain) == "Distinct"
    assert shuffling("Join Inner, (n#1 = n#2)\n:- Project\n:  +- x\n+- y") == "Join"
    assert shuffling(":  +- RepartitionByExpression [n#1]") == "RepartitionByExpression"


class _Failing(Job[JobOptions]):
    kind = "failing"
    options_type = JobOptions
    error: Exception

    def work(self, context: JobContext) -> None:  # noqa: ARG002 (it fails before it needs it)
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AnalysisException("[UNRESOLVED_COLUMN] no column `stauts`.\n'Project"), "`stauts`"),
        (
            PySparkException(
                "[STREAM_FAILED] Query ended\nTraceback (most recent call last):\n"
                "raftwood.loghub.errors.ShardNotFound: there is no shard 7\n"
                "=== Streaming Query ===\nraftwood.plan: none"
            ),
            "there is no shard 7",
        ),
        (
            Py4JError("An error occurred while calling o12.save.\n: java.io.IOException: full"),
            "full",
        ),
    ],
)
def test_what_spark_says_is_told_in_a_line_with_the_jobs_name(
    tmp_path: Path, error: Exception, reason: str
) -> None:
    job = _Failing(
        "errors",
        JobOptions(kind="failing", source="web/access"),
        access=JobAccess(gateways="h:1", access_key="k", access_secret="s"),
        folder=str(tmp_path),
    )
    job.error = error
    context = JobContext(cast("SparkSession", None), lambda _: None, threading.Event())
    with pytest.raises(InternalError, match=f"job 'errors' failed: .*{reason}") as raised:
        job.run(context)
    assert "\n" not in raised.value.message
    found = read_status(str(tmp_path), job="errors", kind="failing")
    assert (found.state, found.error) == (JobState.FAILED, raised.value.message)


def test_a_python_function_keeps_changes_drops_and_multiplies_rows() -> None:
    def function(row: dict[str, object]) -> object:
        number = row["number"]
        return {0: None, 1: {"n": number}, 2: [{"n": 2}, {"n": "two"}]}[number]  # type: ignore[index]

    batch = pyarrow.RecordBatch.from_pydict({"number": [0, 1, 2], "topic": ["a", "b", None]})
    made = _made(function, batch).to_pylist(maps_as_pydicts="strict")  # type: ignore[arg-type]
    assert [(row["topic"], row["contents"]) for row in made] == [
        ("b", {"n": "1"}),
        ("", {"n": "2"}),
        ("", {"n": "two"}),
    ]
