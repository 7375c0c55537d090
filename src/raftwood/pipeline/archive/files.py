"""The files of an archive: listed, read, and created atomically, on any file system.

`ArrowFiles` uses Arrow's file systems and needs no Spark; `HadoopFiles` in `archive/spark` uses
Hadoop's, like Spark's own tables.
"""

import os
import uuid
from collections.abc import Iterable
from typing import Any, Protocol

from pyarrow import fs

from raftwood.base.errors import NotFound
from raftwood.base.file_systems import file_system_of, folder_uri

_FOLDERS_DEEP = 4
"""Levels above a file: the folder of a commit, of the data, of the archive, and its parent."""


class ArchiveFiles(Protocol):
    """The files of one archive; paths are relative to its folder, with slashes."""

    uri: str

    def names(self, folder: str) -> list[str]:
        """Returns the names in a folder, in order; empty if there is no such folder."""

    def read(self, path: str) -> bytes:
        """Reads a file; `NotFound` if there is none."""

    def create(self, path: str, data: bytes) -> bool:
        """Creates a whole file or none; returns False if there is one already."""

    def remove(self, folder: str) -> None:
        """Removes a folder with all of its contents, if it exists."""

    def sync(self, paths: Iterable[str]) -> None:
        """Makes files of other writers durable, on file systems that do not do so by themselves."""


class ArrowFiles:
    """Files on what `pyarrow.fs` supports: this machine, S3, GCS, HDFS with its libraries."""

    def __init__(self, uri: str) -> None:
        self.uri = folder_uri(uri)
        self.filesystem, self.root = file_system_of(uri)

    @property
    def _is_local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def path(self, path: str) -> str:
        """Returns the path in the file system."""
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
        """Creates a file. On object stores two callers at the same moment may both believe that
        they were first: let one archiver at a time write there, or use Hadoop's file systems.
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
        """Opens a new file for writing, in a `with` block."""
        self.filesystem.create_dir(self.path(path.rpartition("/")[0]), recursive=True)
        return self.filesystem.open_output_stream(self.path(path))


def not_found(uri: str, path: str) -> NotFound:
    return NotFound(f"the archive {uri} has no {path}: restore it from a copy")


def create_locally(path: str, data: bytes) -> bool:
    """Links a complete file to its name, which is atomic whatever others do at the same time."""
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
    """Syncs files, and the folders that they are in."""
    written = list(paths)
    for path in written:
        _sync(path)
    _sync_folders(written)


def _sync_folders(paths: Iterable[str]) -> None:
    """Syncs folders up to the parent of the archive's own: any of them may be new."""
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
