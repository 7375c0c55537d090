"""Errors of the operating system, told as what the user of a data folder can do about them."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from raftwood.base.errors import DiskFull, InvalidInput, RaftwoodError, StoreError

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_WRONG_PLACE: Final = (
    errno.EACCES,
    errno.EEXIST,
    errno.EINVAL,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Around opening and inspecting the folder at a path."""
    try:
        yield
    except OSError as error:
        raise _explain(path, error) from error


def _explain(path: str, error: OSError) -> RaftwoodError:
    if error.errno in NO_ROOM:
        return DiskFull(f"no room for the data folder {path} ({error}): free space on the disk")
    if error.errno in _WRONG_PLACE:
        return InvalidInput(
            f"cannot use {path} as a data folder: {error}; give another path, or the right to "
            "write there"
        )
    return StoreError(f"cannot use the data folder {path}: {error}; check the disk and the system")
