"""What every kind of `ArchiveFiles` does; Arrow's and Hadoop's run it."""

import pytest

from raftwood.base.errors import NotFound
from raftwood.pipeline.archive.files import ArchiveFiles


def check_files(files: ArchiveFiles) -> None:
    """On a folder that is not there yet."""
    assert files.names("_manifest") == []
    with pytest.raises(NotFound, match="_manifest/a"):
        files.read("_manifest/a")
    data = bytes(range(256)) * 5
    assert files.create("_manifest/a", data)
    assert not files.create("_manifest/a", b"another")
    assert files.read("_manifest/a") == data
    assert files.create("_manifest/b", b"")
    assert files.read("_manifest/b") == b""
    visible = [name for name in files.names("_manifest") if not name.startswith(".")]
    assert visible == ["a", "b"]
    assert files.create("data/1/x", b"x")
    assert files.create("data/2/y", b"y")
    files.sync(["data/1/x", "data/2/y"])
    files.remove("data/1")
    files.remove("data/none")
    assert [name for name in files.names("data") if not name.startswith(".")] == ["2"]
