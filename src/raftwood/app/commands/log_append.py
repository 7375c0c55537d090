"""Appending the lines of a file or of standard input, a batch at a time."""

import os
import sys
from typing import Final

from raftwood.app.line_input import line_batches
from raftwood.app.output import Format, write_rows
from raftwood.app.progress import Progress
from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.logservice.client.log_client import AsyncLogClient

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
        with Progress("appending") as progress:
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
