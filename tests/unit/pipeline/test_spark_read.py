"""Which archived files one frame of Spark reads."""

from raftwood.pipeline.archive.manifest import ArchivedFile, Commit
from raftwood.pipeline.spark_read import Member, grouped, own_fields


def member(number: int, format: str, **fields: str) -> Member:  # noqa: A002 (as Spark calls it)
    commit = Commit(
        project="p", logstore="s", format=format, ranges=(), fields=fields, made_ms=number
    )
    file = ArchivedFile(path=f"{number}", shard=0, first="1", last="2", rows=1)
    return commit, file


def paths(members: list[Member]) -> list[str]:
    return [file.path for _, file in members]


def test_a_delta_table_is_read_once_whatever_columns_its_commits_have() -> None:
    files = [
        member(0, "delta"),
        member(1, "parquet", n="int"),
        member(2, "delta", n="int"),
        member(3, "parquet"),
        member(4, "delta", n="int"),
        member(5, "parquet", n="int"),
    ]
    found = grouped(files)
    assert [paths(each) for each in found] == [["0", "2", "4"], ["1", "5"], ["3"]]
    assert [own_fields(each) for each in found] == [{}, {"n": "int"}, {}]
    assert own_fields([files[2], files[4]]) == {"n": "int"}
