"""`LogHubHandler`: Python's log lines as records of a logstore. It never blocks the program.

    handler = LogHubHandler(client.producer("web", "app"), topic="shop")
    logging.getLogger().addHandler(handler)

Where the producer holds as much as it may, lines are dropped and counted.
"""

import logging
import threading
from collections.abc import Mapping

from raftwood.base.errors import RaftwoodError
from raftwood.loghub.client.sync_producer import Producer

_OWN_LOGGERS = ("asyncio",)
"""What the client's own thread says would come back to it without end."""


class LogHubHandler(logging.Handler):
    """The producer stays its owner's: close the handler first, then the producer."""

    def __init__(
        self,
        producer: Producer,
        *,
        level: int = logging.NOTSET,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> None:
        """With a `key`, lines stay in order; without one they go to any shard."""
        super().__init__(level)
        self._producer = producer
        self._topic = topic
        self._source = source
        self._tags = dict(tags or {})
        self._key = key
        self._inside = threading.local()
        self.dropped = 0
        """Lines for which there was no room, or no producer any more."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name in _OWN_LOGGERS or getattr(self._inside, "is_busy", False):
            return
        self._inside.is_busy = True
        try:
            self._producer.send(
                self._contents(record),
                key=self._key,
                time_ns=int(record.created * 1_000_000) * 1000,
                topic=self._topic,
                source=self._source,
                tags=self._tags,
                is_waiting=False,
            )
        except RaftwoodError:
            self.dropped += 1
        finally:
            self._inside.is_busy = False

    def _contents(self, record: logging.LogRecord) -> dict[str, str]:
        contents = {
            "level": record.levelname,
            "logger": record.name,
            "message": self._message(record),
            "path": record.pathname,
            "line": str(record.lineno),
            "thread": record.threadName or "",
        }
        if record.exc_info:
            formatter = self.formatter or logging.Formatter()
            contents["exception"] = formatter.formatException(record.exc_info)
        return contents

    def _message(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record) if self.formatter else record.getMessage()
        except (TypeError, ValueError) as error:
            # A line with the wrong arguments is still worth more than none.
            return f"{record.msg} ({error})"
