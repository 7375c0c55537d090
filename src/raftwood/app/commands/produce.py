"""`raftwood produce`: lines of a file or of standard input as records of a logstore."""

import os
from typing import Annotated, Literal

from cyclopts import App, Parameter

from raftwood.app.commands.hub_target import HUB, HubTarget, Stream, stream_of
from raftwood.app.commands.log_append import opened_input
from raftwood.app.line_producer import LineDecoder, LineProducer
from raftwood.app.output import size_text, write_rows
from raftwood.app.progress import Progress
from raftwood.base.errors import InvalidInput
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.client.producer import ProducerSettings

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
        try:
            producer = client.producer(project, logstore, settings=settings)
            lines = LineProducer(producer, decoder, topic=topic, source=source)
            with Progress("putting") as progress:
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
