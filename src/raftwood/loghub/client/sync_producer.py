"""`Producer` and `LogHubHandler`: producers for programs without an event loop.

    with client.producer("project", "logstore") as producer:
        delivery = producer.send({"message": "hello"}, key="user-7")
        delivery.wait()

Any thread may send. A record is encoded in the thread that sends it and handed to the loop's thread
with all others that have come by then, so `send` seldom has to wake that thread up.

The handler turns Python's log lines into records of a logstore, and never blocks the program. If
the producer's memory is full, lines are dropped and counted.

    handler = LogHubHandler(client.producer("web", "app"), topic="shop")
    logging.getLogger().addHandler(handler)
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from raftwood.base.errors import (
    InvalidInput,
    Overloaded,
    RaftwoodError,
    Unavailable,
)
from raftwood.delivery.deliveries import Delivery
from raftwood.disk.loop_thread import LoopThread
from raftwood.loghub.client.producer import (
    RECORD_OVERHEAD_BYTES,
    AsyncProducer,
    Delivered,
    ProducerSettings,
    RecordDelivery,
)

_NO_TAGS: Final[Mapping[str, str]] = {}


ThreadDelivery = RecordDelivery
"""The name of the class in release 0.1.0."""


class Producer:
    """Made by `LogHubClient.producer`; `close` it when done, or use `with`."""

    def __init__(self, thread: LoopThread, producer: AsyncProducer) -> None:
        self._thread = thread
        self._producer = producer
        self._memory_max = producer.settings.memory_bytes_max
        self._timeout_ms = producer.settings.delivery_timeout_ms
        self._inbox: deque[RecordDelivery] = deque()
        self._inbox_bytes = 0
        self._is_scheduled = False
        self._is_closed = False
        self._waiting = 0
        self._room = threading.Condition(threading.Lock())
        self._producer.on_settled = self._settled

    @property
    def settings(self) -> ProducerSettings:
        return self._producer.settings

    @property
    def stored(self) -> int:
        """Counts records, as does `failed`."""
        return self._producer.stored

    @property
    def failed(self) -> int:
        return self._producer.failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(is_waiting=kind is None)

    def send(
        self,
        contents: Mapping[str, str | bytes],
        *,
        key: str | bytes | None = None,
        time_ns: int | None = None,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
        is_waiting: bool = True,
    ) -> Delivery[Delivered]:
        """Takes a record, and waits for room if need be; `Overloaded` if there is none in time.

        One thread's records of one key are stored in the order they are sent in.
        """
        delivery = self._producer.encode(
            contents,
            key=key,
            time_ns=time_ns,
            topic=topic,
            source=source,
            tags=tags,
        )
        with self._room:
            if self._inbox_bytes + self._producer.held_bytes >= self._memory_max:
                self._wait_for_room(is_waiting=is_waiting)
            if self._is_closed:
                raise Unavailable("the producer is closed: make another one")
            self._inbox.append(delivery)
            self._inbox_bytes += delivery.size + RECORD_OVERHEAD_BYTES
            if not self._is_scheduled:
                self._is_scheduled = True
                self._thread.soon(self._take)
        return delivery

    def send_many(
        self,
        records: Iterable[Mapping[str, str | bytes]],
        *,
        key: str | bytes | None = None,
        topic: str = "",
        source: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> list[Delivery[Delivered]]:
        """Takes many records of one key, or of none."""
        return [
            self.send(contents, key=key, topic=topic, source=source, tags=tags)
            for contents in records
        ]

    def send_arrow(self, table: Any, *, key: str | bytes | None = None) -> list[Delivered]:
        """Stores a record batch or a table unchanged, a large one in parts; waits until stored."""

        async def put() -> list[Delivered]:
            self._take()
            return [await each for each in await self._producer.send_arrow(table, key=key)]

        return self._thread.call(put())

    def flush(self) -> None:
        """Waits until all sent is settled; raises the first failure since the last flush."""

        async def settle() -> None:
            self._take()
            await self._producer.flush()

        self._thread.call(settle())

    def close(self, *, is_waiting: bool = True) -> None:
        """Flushes first; without `is_waiting`, what is not stored fails."""
        with self._room:
            if self._is_closed:
                return
            self._is_closed = True
            self._room.notify_all()

        async def end() -> None:
            self._take()
            await self._producer.close(is_waiting=is_waiting)

        self._thread.call(end())

    def _wait_for_room(self, *, is_waiting: bool) -> None:
        if self._thread.is_current:
            raise InvalidInput("a callback cannot wait for the producer that calls it")

        def has_room() -> bool:
            held = self._inbox_bytes + self._producer.held_bytes
            return self._is_closed or held < self._memory_max

        self._waiting += 1
        try:
            if not is_waiting or not self._room.wait_for(has_room, self._timeout_ms / 1000):
                raise Overloaded(
                    f"the producer holds {self._producer.held_bytes} bytes that are not stored "
                    "yet: send more slowly, or raise memory_bytes_max"
                )
        finally:
            self._waiting -= 1

    # On the loop

    def _take(self) -> None:
        with self._room:
            taken, self._inbox = self._inbox, deque()
            self._inbox_bytes = 0
            self._is_scheduled = False
            for delivery in taken:
                self._producer.accept(delivery, is_counted=True)

    def _settled(self) -> None:
        if self._waiting:
            with self._room:
                self._room.notify_all()


_OWN_LOGGERS = ("asyncio",)
"""Loggers whose lines are dropped: the client's own thread writes them, which would loop."""


class LogHubHandler(logging.Handler):
    """Close the handler before the producer, which its owner closes."""

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
        """Lines that were dropped, because there was no room or the producer was closed."""

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
