"""`Archive`: the manifest of an archive where it is kept, read as it grows."""

from typing import Final

from raftwood.base.errors import InvalidConfiguration
from raftwood.pipeline.archive.files import ArchiveFiles
from raftwood.pipeline.archive.manifest import (
    FOLDER,
    Commit,
    Manifest,
    commit_name,
    decode_commit,
    encode_commit,
    in_order,
)

DATA: Final = "data"
"""The folder with a folder for each commit's files."""
TABLE: Final = "table"
"""The folder of a Delta table, which all commits share."""


class Archive:
    """Of one logstore; `InvalidConfiguration` where the files are of another one."""

    def __init__(self, files: ArchiveFiles, *, project: str, logstore: str) -> None:
        self.files = files
        self._project = project
        self._logstore = logstore
        self._commits: list[Commit] = []

    def manifest(self) -> Manifest:
        """As it is now; commits never change, so that each is read once."""
        for name in in_order(self.files.names(FOLDER))[len(self._commits) :]:
            commit = decode_commit(self.files.read(f"{FOLDER}/{name}"), name)
            if (commit.project, commit.logstore) != (self._project, self._logstore):
                raise InvalidConfiguration(
                    f"{self.files.uri} is the archive of {commit.project}/{commit.logstore}, not "
                    f"of {self._project}/{self._logstore}: give each logstore a folder of its own"
                )
            self._commits.append(commit)
        return Manifest(self._commits)

    def add(self, commit: Commit, *, number: int) -> bool:
        """Commit; False where another one was faster, and this one does not count."""
        return self.files.create(f"{FOLDER}/{commit_name(number)}", encode_commit(commit))

    def clean(self, *, commits: int) -> list[str]:
        """Remove folders of runs that never can be committed: others have their numbers."""
        named = {file.path.split("/")[1] for commit in self._commits for file in commit.files}
        removed = [
            name
            for name in self.files.names(DATA)
            if name not in named and name.split("-")[0].isdigit() and int(name[:12]) < commits
        ]
        for name in removed:
            self.files.remove(f"{DATA}/{name}")
        return removed
