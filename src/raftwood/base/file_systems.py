"""Folders by URI, on any file system of Arrow: this machine, S3, GCS, Azure, HDFS."""

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from raftwood.base.errors import InvalidConfiguration

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LIKE_S3 = ("s3a", "s3n")
"""Hadoop's names; Arrow says s3."""


def folder_uri(given: str) -> str:
    """Returns a URI without a slash at its end; a path without a scheme is a local folder."""
    if "://" not in given and not given.startswith("file:"):
        given = "file://" + quote(os.path.abspath(given))
    return given.rstrip("/")


def file_system_of(given: str) -> "tuple[FileSystem, str]":
    """Returns the file system of a folder, and its path there."""
    try:
        import pyarrow  # noqa: PLC0415 (an extra)
        from pyarrow import fs  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"{given!r}: files there need {error.name}: install it with pip install "
            "'raftwood[arrow]'"
        ) from error
    scheme, colon, rest = folder_uri(given).partition(":")
    try:
        found: tuple[FileSystem, str] = fs.FileSystem.from_uri(
            ("s3" if scheme in _LIKE_S3 else scheme) + colon + rest
        )
    except (pyarrow.ArrowException, ValueError) as error:
        raise InvalidConfiguration(
            f"{given!r} is on no file system that Arrow knows ({error}): give a folder or a URI "
            "of another"
        ) from error
    return found
