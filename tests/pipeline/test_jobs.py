"""Jobs on a real Spark: what they write, that they write it once, and what they tell."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from raftwood.base.errors import RaftwoodError
from raftwood.pipeline.jobs.job import Job, JobContext, JobProgress, JobState, read_status
from raftwood.pipeline.jobs.pipeline_file import pipeline_of
from raftwood.pipeline.jobs.runner import run_jobs
from tests.kits.pipeline.kit import PROJECT, Hub

USERS_MODULE = """
from raftwood.pipeline.jobs.transform import Transform

def odd(row):
    number = int(row["contents"]["n"])
    return {"n": number, "twice": 2 * number} if number % 2 else None

class Marked(Transform):
    kind = "marked"

    def build(self, rows):
        return super().build(rows).selectExpr("time", "n", "'marked' AS mark")
"""


def jobs_of(hub: Hub, text: str, folder: Path) -> list[Job[Any]]:
    part = hub.standalone.loghub
    environment = {
        "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS": part.native,
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY": part.access_key,
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET": part.access_secret,
    }
    return pipeline_of(text.encode(), str(folder / "jobs.toml"), environment).jobs


def run(hub: Hub, jobs: list[Job[Any]]) -> list[JobProgress]:
    return run_jobs(hub.spark, jobs, on_progress=lambda _: None, stop=threading.Event())


def rows(hub: Hub, logstore: str, schema: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in hub.read(logstore, schema).collect())


def fill_at(hub: Hub, logstore: str, records: list[tuple[int, str]]) -> None:
    """Records of users at seconds since 1970."""
    with hub.client.producer(PROJECT, logstore) as producer:
        for second, user in records:
            producer.send({"user": user, "size": "10"}, key=user, time_ns=second * 10**9)


def test_transforms_by_sql_by_python_and_by_a_users_class_write_each_row_once(
    hub: Hub, tmp_path: Path
) -> None:
    (tmp_path / "users_transforms.py").write_text(USERS_MODULE)
    source, by_sql, by_python, by_class = (hub.logstore() for _ in range(4))
    text = f"""
[jobs.by-sql]
kind = "transform"
from = "{PROJECT}/{source}"
to = "{PROJECT}/{by_sql}"
fields = "n int"
sql = "SELECT n, n * n AS square FROM input WHERE n % 2 = 0"

[jobs.by-python]
kind = "transform"
from = "{PROJECT}/{source}"
to = "{PROJECT}/{by_python}"
python = "users_transforms:odd"

[jobs.by-class]
kind = "users_transforms:Marked"
from = "{PROJECT}/{source}"
to = "{PROJECT}/{by_class}"
fields = "time timestamp, n int"
sql = "SELECT * FROM input WHERE n >= 40"
"""
    hub.fill(source, range(50))
    told = run(hub, jobs_of(hub, text, tmp_path))
    assert [(each.state, each.rows) for each in told] == [(JobState.DONE, 50)] * 3
    hub.fill(source, range(50, 60))
    again = run(hub, jobs_of(hub, text, tmp_path))
    assert [each.rows for each in again] == [10, 10, 10]
    assert rows(hub, by_sql, "n int, square int") == [(n, n * n) for n in range(0, 60, 2)]
    assert rows(hub, by_python, "n int, twice int") == [(n, 2 * n) for n in range(1, 60, 2)]
    assert rows(hub, by_class, "n int, mark string") == [(n, "marked") for n in range(40, 60)]
    job = jobs_of(hub, text, tmp_path)[0]
    assert read_status(job.folder, job=job.name, kind=job.kind) == again[0]


def test_windows_are_written_when_they_are_final_or_as_they_change_and_late_rows_are_counted(
    hub: Hub, tmp_path: Path
) -> None:
    source, final, changes = (hub.logstore(1) for _ in range(3))
    text = "".join(
        f"""
[jobs.{emits}]
kind = "aggregate"
from = "{PROJECT}/{source}"
to = "{PROJECT}/{target}"
fields = "time timestamp, user string, size int"
window = "10 seconds"
watermark = "5 seconds"
group_by = ["user"]
measures = {{rows = "count(*)", size = "sum(size)"}}
emits = "{emits}"
"""
        for emits, target in (("final", final), ("changes", changes))
    )
    fill_at(hub, source, [(1000, "a"), (1001, "a"), (1002, "b"), (1012, "a")])
    run(hub, jobs_of(hub, text, tmp_path))
    fill_at(hub, source, [(1003, "b"), (1040, "a")])
    run(hub, jobs_of(hub, text, tmp_path))
    fill_at(hub, source, [(1004, "b"), (1041, "a")])
    told = run(hub, jobs_of(hub, text, tmp_path))
    assert [each.late for each in told] == [1, 1]
    columns = "window_start string, user string, rows int, size int"
    start, later, last = (f"1970-01-01 00:{text}" for text in ("16:40", "16:50", "17:20"))
    assert rows(hub, final, columns) == [
        (start, "a", 2, 20),
        (start, "b", 2, 20),
        (later, "a", 1, 10),
    ]
    found = hub.read(changes, f"{columns}, position binary, index int").collect()
    found.sort(key=lambda row: (bytes(row.position), row["index"]))
    latest = {(row.window_start, row.user): row.rows for row in found}
    assert latest == {(start, "a"): 2, (start, "b"): 2, (later, "a"): 1, (last, "a"): 2}
    assert len(found) == 6  # two windows and groups changed twice


def test_sessions_are_written_once_they_are_over(hub: Hub, tmp_path: Path) -> None:
    source, target = hub.logstore(), hub.logstore()
    text = f"""
[jobs.sessions]
kind = "sessionize"
from = "{PROJECT}/{source}"
to = "{PROJECT}/{target}"
fields = "time timestamp, user string, size int"
key = "user"
gap = "10 seconds"
watermark = "5 seconds"
sums = ["size"]
ends = ["user"]
"""
    fill_at(hub, source, [(1008, "a"), (1000, "a"), (1030, "a"), (1002, "b")])
    run(hub, jobs_of(hub, text, tmp_path))
    fill_at(hub, source, [(1035, "a"), (1100, "b")])
    run(hub, jobs_of(hub, text, tmp_path))
    columns = "key string, rows int, start_ms bigint, end_ms bigint, sum_size int"
    assert rows(hub, target, columns) == [
        ("a", 2, 1_000_000, 1_008_000, 20),
        ("a", 2, 1_030_000, 1_035_000, 20),
        ("b", 1, 1_002_000, 1_002_000, 10),
    ]


def test_a_replay_reads_the_log_and_a_backfill_the_archive_as_well(
    hub: Hub, tmp_path: Path
) -> None:
    source, replayed, filled = (hub.logstore(1) for _ in range(3))
    text = f"""
[jobs.archive]
kind = "archive"
from = "{PROJECT}/{source}"
to = "archive"
columns = ["user string"]
truncates = true

[jobs.replay]
kind = "replay"
from = "{PROJECT}/{source}"
to = "{PROJECT}/{replayed}"
begin = "1970-01-01T00:16:42Z"
end = "1970-01-01T00:16:46Z"

[jobs.backfill]
kind = "backfill"
from = "{PROJECT}/{source}"
to = "{PROJECT}/{filled}"
archive = "archive"
begin = "1970-01-01T00:16:42Z"
end = "1970-01-01T00:16:46Z"
"""
    archive, replay, backfill = jobs_of(hub, text, tmp_path)
    fill_at(hub, source, [(1000 + n, f"old{n}") for n in range(5)])
    assert run(hub, [archive])[0].rows == 5
    fill_at(hub, source, [(1003 + n, f"new{n}") for n in range(5)])
    for _ in range(2):
        run(hub, [replay, backfill])
    assert rows(hub, replayed, "user string") == [("new0",), ("new1",), ("new2",)]
    assert rows(hub, filled, "user string") == [
        ("new0",),
        ("new1",),
        ("new2",),
        ("old2",),
        ("old3",),
        ("old4",),
    ]


def test_a_job_with_an_interval_runs_until_it_is_told_to_stop(hub: Hub, tmp_path: Path) -> None:
    source, target = hub.logstore(), hub.logstore()
    text = f"""
[jobs.always]
kind = "transform"
from = "{PROJECT}/{source}"
to = "{PROJECT}/{target}"
fields = "n int"
trigger = "1 second"
sql = "SELECT n FROM input"
"""
    hub.fill(source, range(10))
    (job,) = jobs_of(hub, text, tmp_path)
    stop, seen = threading.Event(), threading.Event()
    deadline = time.monotonic() + 120

    def hear(progress: JobProgress) -> None:
        if progress.rows == 10:
            seen.set()

    def end() -> None:
        seen.wait(deadline - time.monotonic())
        stop.set()

    waiting = threading.Thread(target=end)
    waiting.start()
    try:
        (told,) = run_jobs(hub.spark, [job], on_progress=hear, stop=stop)
    finally:
        seen.set()
        waiting.join()
    assert (told.state, told.rows, told.lag) == (JobState.STOPPED, 10, 0)
    # What it has read may be truncated, also what its last micro-batch read.
    for detail in hub.client.describe(PROJECT, source):
        assert detail.required == detail.next
    assert hub.numbers(target) == list(range(10))


def test_a_job_that_fails_says_why_and_its_status_does(hub: Hub, tmp_path: Path) -> None:
    source = hub.logstore()
    hub.fill(source, range(3))
    text = f"""
[jobs.lost]
kind = "transform"
from = "{PROJECT}/{source}"
to = "{PROJECT}/nowhere"
fields = "n int"
sql = "SELECT n FROM input"
"""
    context = JobContext(hub.spark, lambda _: None, threading.Event())
    for wrong, said in (
        ("SELECT DISTINCT n FROM input", r"'lost': its rows do not keep their order \(Distinct"),
        ("SELECT m FROM input", r"job 'lost' failed: .*`m`"),
        ("SELEC n FROM input", r"job 'lost' failed: .*SELEC"),
    ):
        (job,) = jobs_of(hub, text.replace("SELECT n FROM input", wrong), tmp_path)
        with pytest.raises(RaftwoodError, match=said):
            job.run(context)
    (job,) = jobs_of(hub, text, tmp_path)
    with pytest.raises(RaftwoodError, match=r"job 'lost' failed: .*nowhere"):
        job.run(context)
    found = read_status(job.folder, job="lost", kind="transform")
    assert found.state is JobState.FAILED
    assert "nowhere" in found.error
