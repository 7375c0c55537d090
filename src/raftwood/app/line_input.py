"""Lines of a file or of standard input as they come, in batches, without a thread."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Final

from raftwood.base.errors import InvalidInput
from raftwood.logservice.errors import RecordTooLarge

READ_BYTES: Final = 1 << 20


async def line_batches(source: int, *, line_bytes_max: int) -> AsyncIterator[list[bytes]]:
    """The lines of an open file, those together that came together; the last may have no end."""
    rest = b""
    number = 0
    while data := await _read(source):
        *lines, rest = (rest + data).split(b"\n")
        number += len(lines)
        if max(map(len, lines), default=0) > line_bytes_max or len(rest) > line_bytes_max:
            raise RecordTooLarge(
                f"a line up to line {number + 1} is above {line_bytes_max} bytes, the largest "
                "record of this shard: split it; of what was read with it nothing was written"
            )
        if lines:
            yield lines
    if rest:
        yield [rest]


async def cut_line_batches(source: int, *, line_bytes_max: int) -> AsyncIterator[list[bytes]]:
    """As `line_batches`, but of a line above the limit come its first bytes, one too many."""
    rest = b""
    while data := await _read(source):
        lines = [line[: line_bytes_max + 1] for line in (rest + data).split(b"\n")]
        rest = lines.pop()
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _read(source: int) -> bytes:
    """What is there, once something is; nothing at the end."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    try:
        loop.add_reader(source, _set, ready)
    except OSError:
        pass  # A plain file: it never lets one wait.
    else:
        try:
            await ready
        finally:
            loop.remove_reader(source)
    try:
        return os.read(source, READ_BYTES)
    except OSError as error:
        raise InvalidInput(f"the input cannot be read: {error.strerror}") from error


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
