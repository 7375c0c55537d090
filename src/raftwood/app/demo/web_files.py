"""What files of web servers hold, as far as it takes to compare them: how many lines, and a digest
of all of them in their order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

from raftwood.app.demo.web_logs import LOG_FILES, log_file


def server_name(server: int) -> str:
    return f"web-{server}"


def file_name(server: int, line: str) -> str:
    """As the file is shipped."""
    return f"{server_name(server)}/{log_file(line)}"


def file_names(server: int) -> list[str]:
    """All of a server's."""
    return [f"{server_name(server)}/{name}" for name in LOG_FILES]


def share(lines: int, server: int, servers: int) -> int:
    """How many of so many lines are the server's, of those from 1 on."""
    return lines // servers + (server <= lines % servers)


class FileLines:
    """Of one file: a line that is missing, there twice or out of order makes another digest."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = blake2b(digest_size=16)

    def add(self, line: str) -> None:
        self.count += 1
        self._digest.update(line.encode())
        self._digest.update(b"\n")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileLines) and self._figures() == other._figures()

    __hash__ = None  # type: ignore[assignment]

    def _figures(self) -> tuple[int, bytes]:
        return self.count, self._digest.digest()


class WebFiles:
    """All files, by their names."""

    def __init__(self) -> None:
        self._files: defaultdict[str, FileLines] = defaultdict(FileLines)

    def add(self, name: str, line: str) -> None:
        self._files[name].add(line)

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def same_as(self, other: "WebFiles") -> list[str]:
        """The names of the files that hold the same lines in the same order in both."""
        return [name for name in self if other._files.get(name) == self._files[name]]


def stored_files(
    read: Callable[..., Any], project: str, logstore: str, access: Mapping[str, str]
) -> WebFiles:
    """As a stream has them, by the topics of its records; each file is in one shard of it."""
    table = read(project, logstore, columns=["topic", "message string"], **access)
    found = WebFiles()
    # It is read shard by shard, each in its order.
    for batch in table.to_batches():
        for name, line in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found.add(name, line)
    return found
