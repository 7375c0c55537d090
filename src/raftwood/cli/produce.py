"""`raftwood produce`: lines of a file or of standard input as records of a logstore."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from cyclopts import App, Parameter

from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    PermissionDenied,
    RaftwoodError,
    TooLarge,
    Unauthenticated,
)
from raftwood.base.text import escaped
from raftwood.cli.input import cut_line_batches, opened_input
from raftwood.cli.loghub_target import HUB, HubTarget, Stream, stream_of
from raftwood.cli.output import StatusLine, size_text, write_rows
from raftwood.delivery.deliveries import Delivery
from raftwood.loghub import json_records
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.producer import AsyncProducer, Delivered, ProducerSettings
from raftwood.loghub.json_records import TIME_FIELDS, UNREADABLE, refused, text_of, time_of

LINE_BYTES_MAX: Final = 2 << 20
NAMED_MAX: Final = 10
"""Of the lines that fail, so many are named."""
TEXT_FIELD: Final = "message"
_HOPELESS: Final = (NotFound, PermissionDenied, Unauthenticated)
"""After these no other record will be taken either."""
_INTERRUPTED: Final = 130
_decode_object: Final = msgspec.json.Decoder(dict[str, Any]).decode

Contents = dict[str, str | bytes]


class LineDecoder(msgspec.Struct, frozen=True):
    """What a line says."""

    form: Literal["text", "json"]
    key_field: str | None = None

    def decode(self, line: bytes, *, number: int, now_ns: int) -> tuple[Contents, int]:
        """Its fields and its time; `InvalidInput` for what cannot be read."""
        if len(line) > LINE_BYTES_MAX:
            raise TooLarge(f"line {number} is above {LINE_BYTES_MAX} bytes: split it")
        if self.form == "text":
            return {TEXT_FIELD: line.removesuffix(b"\r")}, now_ns
        try:
            record = _decode_object(line)
        except UNREADABLE as error:
            raise refused(f"line {number}", error) from error
        fields: Contents = {name: text_of(value) for name, value in record.items()}
        return fields, json_records.sensible(time_of(record, TIME_FIELDS), now_ns)

    def key(self, fields: Contents) -> str | bytes | None:
        return None if self.key_field is None else fields.get(self.key_field)

    def is_blank(self, line: bytes) -> bool:
        """A blank line is a record as text, and nothing as JSON."""
        return self.form == "json" and (not line or line.isspace())


class LineProducer:
    """Use `run` once; the figures are right when it returns."""

    def __init__(
        self, producer: AsyncProducer, decoder: LineDecoder, *, topic: str = "", source: str = ""
    ) -> None:
        self._producer = producer
        self._decoder = decoder
        self._topic = topic
        self._source = source
        self._stopped = asyncio.Event()
        self._is_interrupted = False
        self.stored = 0
        self.stored_bytes = 0
        """Of the lines."""
        self.failed = 0
        self.seconds = 0.0

    async def run(self, descriptor: int, say: Callable[[str], None]) -> int:
        """Put all lines; the exit status. What was read before an interrupt is put as well."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        reading = asyncio.create_task(self._read(descriptor, say))
        stopped = asyncio.create_task(self._stopped.wait())
        failure: RaftwoodError | None = None
        try:
            async with self._producer:
                await asyncio.wait((reading, stopped), return_when=asyncio.FIRST_COMPLETED)
                reading.cancel()
                (outcome,) = await asyncio.gather(reading, return_exceptions=True)
                if isinstance(outcome, RaftwoodError):
                    failure = outcome
                elif isinstance(outcome, Exception):
                    raise outcome
                await self._flushed()
        finally:
            stopped.cancel()
            reading.cancel()
            await asyncio.gather(reading, stopped, return_exceptions=True)
            self.seconds = max(1e-9, loop.time() - began)
        if failure is not None:
            self._name(failure.message)
            return 1
        if self._is_interrupted:
            return _INTERRUPTED
        return 1 if self.failed else 0

    def _interrupt(self, number: signal.Signals) -> None:
        """The first one ends the reading; a second one ends the process as it always does."""
        self._is_interrupted = True
        self._stopped.set()
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(number)

    async def _read(self, descriptor: int, say: Callable[[str], None]) -> None:
        count = 0
        async for lines in cut_line_batches(descriptor, line_bytes_max=LINE_BYTES_MAX):
            for line in lines:
                count += 1
                if not self._decoder.is_blank(line):
                    await self._put(line, count)
            say(f"{count:,} lines read, {self.stored:,} stored, {self.failed:,} failed")

    async def _put(self, line: bytes, number: int) -> None:
        now_ns = time.time_ns()
        try:
            fields, time_ns = self._decoder.decode(line, number=number, now_ns=now_ns)
            delivery = await self._producer.send(
                fields,
                key=self._decoder.key(fields),
                time_ns=time_ns,
                topic=self._topic,
                source=self._source,
            )
        except RaftwoodError as error:
            self._fail(number, error)
            return
        delivery.when_done(partial(self._settled, delivery, number, len(line)))

    def _settled(self, delivery: Delivery[Delivered], number: int, size: int) -> None:
        try:
            delivery.result()
        except RaftwoodError as error:
            self._fail(number, error)
        else:
            self.stored += 1
            self.stored_bytes += size

    async def _flushed(self) -> None:
        # Each record of which it speaks was counted, and the first ones were named.
        with contextlib.suppress(RaftwoodError):
            await self._producer.flush()

    def _fail(self, number: int, error: RaftwoodError) -> None:
        self.failed += 1
        if self.failed <= NAMED_MAX:
            text = error.message
            self._name(text if text.startswith(f"line {number} ") else f"line {number}: {text}")
        elif self.failed == NAMED_MAX + 1:
            self._name("more lines fail, and are counted alone")
        if isinstance(error, _HOPELESS):
            self._stopped.set()

    def _name(self, text: str) -> None:
        sys.stderr.write(f"error: {escaped(text)}\n")


app = App(name="produce", help_format="plaintext")

_COLUMNS = {
    "records": "records",
    "bytes": "bytes",
    "failed": "failed",
    "seconds": "seconds",
    "rate": "rate",
}


@app.default
def produce(
    stream: Stream,
    *,
    file: Annotated[
        str | None, Parameter(help="The lines of this file; else of standard input.")
    ] = None,
    form: Annotated[
        Literal["text", "json"],
        Parameter(
            name="--input",
            help="What a line is: a text, put as the field `message`, or a JSON object, whose "
            "members are the fields.",
        ),
    ] = "text",
    key: Annotated[
        str | None,
        Parameter(
            help="The field whose value is the record's key: the records of a key keep their "
            "order. Records without it go anywhere."
        ),
    ] = None,
    topic: Annotated[str, Parameter(help="What the records are about.")] = "",
    source: Annotated[str, Parameter(help="Where they come from, such as a host.")] = "",
    timeout_seconds: Annotated[
        float, Parameter(help="How long to try, until a record counts as failed.")
    ] = 60.0,
    hub: HubTarget = HUB,
) -> int:
    """Put a record for each line, each once, and wait until all are stored.

    An interrupt ends the reading, and what was read is put still. The exit status is 1 if a line
    was not put; the first such lines are named.
    """
    project, logstore = stream_of(stream)
    if not 0 < timeout_seconds <= 86_400:
        raise InvalidInput(f"--timeout-seconds {timeout_seconds:g}: give more than 0, up to a day")
    settings = ProducerSettings(delivery_timeout_ms=max(1, int(timeout_seconds * 1000)))
    decoder = LineDecoder(form, key_field=key)

    async def work(client: AsyncLogHubClient) -> int:
        # Whoever may not write, or where nothing is, hears of it before anything is read.
        await client.shards(project, logstore)
        descriptor = opened_input(file)
        if os.isatty(descriptor):
            sys.stderr.write("a record for each line that you type; end with Ctrl-D\n")
        try:
            producer = client.producer(project, logstore, settings=settings)
            lines = LineProducer(producer, decoder, topic=topic, source=source)
            with StatusLine("putting") as progress:
                status = await lines.run(descriptor, progress.say)
        finally:
            if file is not None:
                os.close(descriptor)
        row = {
            "records": lines.stored,
            "bytes": lines.stored_bytes,
            "failed": lines.failed,
            "seconds": round(lines.seconds, 3),
            "rate": f"{lines.stored / lines.seconds:,.0f} records/s, "
            f"{size_text(int(lines.stored_bytes / lines.seconds))}/s",
        }
        write_rows([row], _COLUMNS, hub.output)
        return status

    return hub.run(work)
