"""The files of an archive: listed, read, and made whole or not at all, on any file system.

`ArrowFiles` goes by Arrow's file systems and needs no Spark; `HadoopFiles` in `archive/spark` by
Hadoop's, as Spark's own tables do.
"""

import os
import uuid
from collections.abc import Iterable
from typing import Any, Protocol

from pyarrow import fs

from raftwood.base.errors import NotFound
from raftwood.base.file_systems import file_system_of, folder_uri

_FOLDERS_DEEP = 4
"""From a file up: a commit's, that of the data, the archive's, and where that one is."""


class ArchiveFiles(Protocol):
    """Paths are relative to the archive's own folder, with slashes."""

    uri: str

    def names(self, folder: str) -> list[str]:
        """Of the files and folders in a folder, in order; none where there is no such folder."""

    def read(self, path: str) -> bytes:
        """`NotFound` where it is not there."""

    def create(self, path: str, data: bytes) -> bool:
        """Whole or not at all; False where it is there already, and is left as it is."""

    def remove(self, folder: str) -> None:
        """With all that is in it, if it is there."""

    def sync(self, paths: Iterable[str]) -> None:
        """Files that others wrote are to last; for file systems where that is not so by itself."""


class ArrowFiles:
    """On what `pyarrow.fs` knows: this machine, S3, GCS, HDFS with its libraries."""

    def __init__(self, uri: str) -> None:
        self.uri = folder_uri(uri)
        self.filesystem, self.root = file_system_of(uri)

    @property
    def _is_local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def path(self, path: str) -> str:
        """As the file system has it."""
        return f"{self.root}/{path}"

    def names(self, folder: str) -> list[str]:
        selector = fs.FileSelector(self.path(folder), allow_not_found=True)
        return sorted(each.base_name for each in self.filesystem.get_file_info(selector))

    def read(self, path: str) -> bytes:
        try:
            with self.filesystem.open_input_stream(self.path(path)) as stream:
                return bytes(stream.read())
        except FileNotFoundError as error:
            raise not_found(self.uri, path) from error

    def create(self, path: str, data: bytes) -> bool:
        """On object stores, two that come at the same moment may both think that they were first:
        let one archiver at a time write there, or use Hadoop's.
        """
        folder = path.rpartition("/")[0]
        self.filesystem.create_dir(self.path(folder), recursive=True)
        if self._is_local:
            return create_locally(self.path(path), data)
        if self.filesystem.get_file_info(self.path(path)).type is not fs.FileType.NotFound:
            return False
        with self.filesystem.open_output_stream(self.path(path)) as stream:
            stream.write(data)
        return True

    def remove(self, folder: str) -> None:
        if self.filesystem.get_file_info(self.path(folder)).type is fs.FileType.Directory:
            self.filesystem.delete_dir(self.path(folder))

    def sync(self, paths: Iterable[str]) -> None:
        if self._is_local:
            sync_locally(self.path(path) for path in paths)

    def open(self, path: str) -> Any:
        """A new file to write to, in a `with` block."""
        self.filesystem.create_dir(self.path(path.rpartition("/")[0]), recursive=True)
        return self.filesystem.open_output_stream(self.path(path))


def not_found(uri: str, path: str) -> NotFound:
    return NotFound(f"the archive {uri} has no {path}: restore it from a copy")


def create_locally(path: str, data: bytes) -> bool:
    """A link to a whole file is made, or is not, whatever others do at the same time."""
    temporary = f"{path}.{uuid.uuid4().hex}.new"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    _sync_folders((path,))
    return True


def sync_locally(paths: Iterable[str]) -> None:
    """Files, and the folders that they are in."""
    written = list(paths)
    for path in written:
        _sync(path)
    _sync_folders(written)


def _sync_folders(paths: Iterable[str]) -> None:
    """Up to the one that the archive's own is in: any of them may be new."""
    folders: dict[str, None] = {}
    for path in paths:
        folder = path
        for _ in range(_FOLDERS_DEEP):
            folder = os.path.dirname(folder)
            folders[folder] = None
    for folder in folders:
        _sync(folder)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
