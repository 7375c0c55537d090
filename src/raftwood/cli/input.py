"""Lines of a file or of standard input, in batches as they come; and appending them to a log."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Final

from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.cli.output import Format, StatusLine, write_rows
from raftwood.logservice.client.log_client import AsyncLogClient
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


_COLUMNS: Final = {
    "records": "records",
    "bytes": "bytes",
    "first_lsn": "first LSN",
    "last_lsn": "last LSN",
}


async def append_lines(client: AsyncLogClient, file: str | None, output: Format) -> None:
    """A record for each line; where some fail, how far it came is told before the error is."""
    source = opened_input(file)
    records = size = 0
    first: int | None = None
    last: int | None = None
    try:
        with StatusLine("appending") as progress:
            batches = line_batches(source, line_bytes_max=client.config.record_bytes_max)
            async for lines in batches:
                lsns = await client.append_many(lines)
                records += len(lines)
                size += sum(map(len, lines))
                first = lsns[0] if first is None else first
                last = lsns[-1]
                progress.say(f"{records:,} records, {size:,} bytes, up to LSN {last}")
    except RaftwoodError:
        sys.stderr.write(f"{records} records were appended before the error, up to LSN {last}\n")
        raise
    finally:
        if file is not None:
            os.close(source)
    row = {"records": records, "bytes": size, "first_lsn": first, "last_lsn": last}
    write_rows([row], _COLUMNS, output)


def opened_input(file: str | None) -> int:
    """Standard input, or the file, which its caller closes."""
    if file is None:
        if sys.stdin is None:
            raise InvalidInput("standard input is closed: give lines there, or --file")
        return sys.stdin.fileno()
    try:
        return os.open(file, os.O_RDONLY)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
