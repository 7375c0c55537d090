"""A log file to be shipped: lines of a web server, each one another, made as fast as a disk writes.

A block of lines is made once; each copy of it has its own number in all of its lines.
"""

import pathlib
from itertools import count
from typing import Final

import msgspec

from raftwood_demos.web_logs import web_logs

LINES_PER_BLOCK: Final = 40_000
_PLACE: Final = b"\x00" * 8
_SEED: Final = 12


class LogFile(msgspec.Struct, frozen=True):
    """A file, and what a sink has to count."""

    path: str
    lines: int
    bytes: int


def make_log_file(path: pathlib.Path, bytes_min: int, *, lines: int = LINES_PER_BLOCK) -> LogFile:
    """Whole blocks, until the file has so many bytes."""
    template = _template(lines)
    written = blocks = 0
    with path.open("wb") as file:
        for number in count():
            if written >= bytes_min:
                break
            written += file.write(template.replace(_PLACE, b"%08d" % number))
            blocks += 1
    return LogFile(str(path), blocks * lines, written)


def _template(lines: int) -> bytes:
    """Lines with a place for the block's number."""
    made = enumerate(web_logs(lines, seed=_SEED))
    return b"".join(b"%b-%06d %b\n" % (_PLACE, number, line.encode()) for number, line in made)
