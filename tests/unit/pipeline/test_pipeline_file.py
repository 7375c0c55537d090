"""A pipeline's file: what it says becomes jobs, and mistakes are told with their place."""

from pathlib import Path

import pytest

from raftwood.base.errors import InvalidConfiguration, InvalidInput
from raftwood.pipeline.jobs.aggregate import Aggregate
from raftwood.pipeline.jobs.archive import Archive
from raftwood.pipeline.jobs.pipeline_file import Pipeline, pipeline_of, read_pipeline
from raftwood.pipeline.jobs.transform import Transform

ACCESS = {
    "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS": "127.0.0.1:7401",
    "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY": "id",
    "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET": "secret",
}
TRANSFORM = 'kind = "transform"\nfrom = "a/b"\nto = "a/c"\n'


def _pipeline(text: str, folder: Path) -> Pipeline:
    return pipeline_of(text.encode(), str(folder / "web.toml"), ACCESS)


def test_the_demos_own_file_is_a_pipeline() -> None:
    path = Path(__file__).parents[3] / "src/raftwood_demos/web_pipeline.toml"
    jobs = {job.name: job for job in read_pipeline(str(path), ACCESS).jobs}
    assert list(jobs) == ["parse", "errors", "minutes", "keys", "archive"]
    assert isinstance(jobs["minutes"], Aggregate)
    assert isinstance(jobs["archive"], Archive)
    assert jobs["archive"].place("archive") == str(path.parent / "archive")
    assert jobs["archive"].place("s3a://lake/x") == "s3a://lake/x"


def test_a_job_has_a_folder_below_the_pipelines_own(tmp_path: Path) -> None:
    found = _pipeline(f'folder = "state"\n[jobs.one]\n{TRANSFORM}sql = "x"\n', tmp_path)
    assert found.name == "web"
    assert found.jobs[0].folder == str(tmp_path / "state" / "one")


def test_what_the_file_says_of_loghub_goes_before_the_environment(tmp_path: Path) -> None:
    text = f'[loghub]\ngateways = "other:1"\n[jobs.one]\n{TRANSFORM}sql = "x"\n'
    access = _pipeline(text, tmp_path).jobs[0].access
    assert (access.gateways, access.access_key) == ("other:1", "id")
    assert "secret" not in repr(access)


def test_who_only_looks_at_jobs_needs_no_access(tmp_path: Path) -> None:
    path = tmp_path / "web.toml"
    path.write_text(f'[jobs.one]\n{TRANSFORM}sql = "x"\n')
    with pytest.raises(InvalidConfiguration, match="say gateways in"):
        read_pipeline(str(path), {})
    (job,) = read_pipeline(str(path), {}, needs_access=False).jobs
    assert job.name == "one"


def test_jobs_are_chosen_by_name_in_the_files_order(tmp_path: Path) -> None:
    text = "".join(f'[jobs.{name}]\n{TRANSFORM}sql = "x"\n' for name in "cab")
    found = _pipeline(text, tmp_path)
    assert [job.name for job in found.chosen(())] == ["c", "a", "b"]
    assert [job.name for job in found.chosen(("b", "c"))] == ["c", "b"]
    with pytest.raises(InvalidConfiguration, match="no job 'x': it has a, b, c"):
        found.chosen(("x",))


def test_a_users_own_class_is_a_kind(tmp_path: Path) -> None:
    (tmp_path / "users_jobs.py").write_text(
        "from raftwood.pipeline.jobs.transform import Transform\n"
        "class Mine(Transform):\n    kind = 'mine'\n"
    )
    text = f"[jobs.one]\n{TRANSFORM}sql = 'x'\n".replace("transform", "users_jobs:Mine")
    job = _pipeline(text, tmp_path).jobs[0]
    assert isinstance(job, Transform)
    assert type(job).__name__ == "Mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs = 1", "web.toml"),
        ("x = ", "web.toml"),
        ("[jobs.one]\n", "no kind"),
        ('[jobs.one]\nkind = "x"\n', "no kind of job 'x'"),
        ('[jobs.one]\nkind = "os:sep"\n', "no class of jobs"),
        (f"[jobs.one]\n{TRANSFORM}", "either sql or python"),
        (f'[jobs.one]\n{TRANSFORM}sql = "x"\nsqll = "y"\n', "sqll"),
        (f'[jobs.one]\n{TRANSFORM}sql = "x"\ntrigger = "often"\n', "trigger 'often'"),
        (f'[jobs."a b"]\n{TRANSFORM}sql = "x"\n', "not allowed"),
        (f'[loghub]\nx = "y"\n[jobs.one]\n{TRANSFORM}sql = "x"\n', "no 'x'"),
        (
            '[jobs.one]\nkind = "aggregate"\nfrom = "a/b"\nto = "a/c"\nwindow = "soon"\n',
            "no time span",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        _pipeline(text, tmp_path)


def test_without_an_access_key_the_message_says_where_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="raftwood standalone"):
        pipeline_of(f'[jobs.a]\n{TRANSFORM}sql = "x"'.encode(), str(tmp_path / "w.toml"), {})
