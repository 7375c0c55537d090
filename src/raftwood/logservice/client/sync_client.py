"""`LogClient`: a shard of the log service for programs without an event loop.

    with LogClient.connect("127.0.0.1:7001", secret=SECRET, shard="orders") as log:
        lsn = log.append(b"a record")
        records, next_lsn = log.read(lsn)
        for record in log.tail(lsn): ...

A thin facade: the real client runs on an event loop in a thread of its own, and any number of
threads may call it. The calls mean what they do in `AsyncLogClient`.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Self

from raftwood.base.files import Buffer
from raftwood.disk.loop_thread import LoopThread
from raftwood.logservice.client.log_client import (
    READ_BYTES,
    TAIL_WAIT_MS,
    TIMEOUT_MS,
    AsyncLogClient,
    LogClientConfig,
    RecordBuffer,
)
from raftwood.logservice.records import Record
from raftwood.logservice.wire import ShardInfo
from raftwood.net import ClientTls, Secret
from raftwood.net.identity import CLIENT_ROLE, READER_ROLE
from raftwood.net.stores import ClientNetwork


class LogClient:
    """A shard's client for threads. Use `connect`, and `close` when done, or a `with` block."""

    def __init__(self, thread: LoopThread, client: AsyncLogClient) -> None:
        self._thread = thread
        self._client = client

    @classmethod
    def connect(
        cls,
        addresses: str | Sequence[str],
        *,
        secret: str | bytes,
        shard: int | str,
        cluster: str = "raftwood",
        is_read_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
        tls: ClientTls | None = None,
    ) -> Self:
        """Connects to a shard, by number or name; `addresses` are those of some stores,
        HOST:PORT[,…].

        The secret is that of clients, or of readers for a client that only reads.
        """
        given = addresses.split(",") if isinstance(addresses, str) else addresses
        network = ClientNetwork(
            cluster=cluster,
            secret=Secret(secret).as_key(),
            role=READER_ROLE if is_read_only else CLIENT_ROLE,
            tls=tls,
        )
        return cls(
            *LoopThread.with_client(
                "raftwood-log-client",
                lambda environment: AsyncLogClient.connect(
                    environment,
                    network,
                    [each.strip() for each in given if each.strip()],
                    shard=shard,
                    is_read_only=is_read_only,
                    timeout_ms=timeout_ms,
                ),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the client; other threads' calls fail, with the outcome of appends unknown."""
        self._thread.stop(self._client.close)

    @property
    def config(self) -> LogClientConfig:
        return self._client.config

    # Records

    @staticmethod
    def get_log_record(size: int) -> RecordBuffer:
        """Returns a buffer of `size` bytes for a record, reusable as soon as `append` returns."""
        return AsyncLogClient.get_log_record(size)

    def append(self, record: RecordBuffer | Buffer) -> int:
        """Appends a record; returns its LSN once a majority has stored it durably."""
        return self._thread.call(self._client.append(record))

    def append_soon(self, record: RecordBuffer | Buffer) -> "Future[int]":
        """Like `append`, but does not wait: one thread's records stay in order."""
        payload = record.payload if isinstance(record, RecordBuffer) else record
        return self._thread.begin(self._client.append(bytes(payload)))

    def append_many(self, records: Iterable[RecordBuffer | Buffer]) -> list[int]:
        """Appends records in order, many at once; returns their LSNs."""
        # The list is made here: the iterable may be one that only this thread may use.
        return self._thread.call(self._client.append_many(list(records)))

    def append_once(self, record: RecordBuffer | Buffer, *, producer: str, sequence: int) -> int:
        """Appends under a name: repeating (producer, sequence) writes nothing twice."""
        return self._thread.call(
            self._client.append_once(record, producer=producer, sequence=sequence)
        )

    def read(
        self,
        first_lsn: int,
        *,
        bytes_max: int = READ_BYTES,
        wait_ms: int = 0,
        has_internal: bool = False,
    ) -> tuple[list[Record], int]:
        """Reads records from an LSN on; returns them and the LSN to read next."""
        return self._thread.call(
            self._client.read(
                first_lsn, bytes_max=bytes_max, wait_ms=wait_ms, has_internal=has_internal
            )
        )

    def tail(self, first_lsn: int, *, bytes_max: int = READ_BYTES) -> Iterator[Record]:
        """Yields records from an LSN on, for ever: at the end it waits for more."""
        while True:
            records, first_lsn = self.read(first_lsn, bytes_max=bytes_max, wait_ms=TAIL_WAIT_MS)
            yield from records

    # The shard's state

    def truncate(self, lsn: int) -> None:
        """Truncates all records up to and including an LSN."""
        self._thread.call(self._client.truncate(lsn))

    def get_truncated_lsn(self) -> int:
        return self._thread.call(self._client.get_truncated_lsn())

    def get_latest_lsn(self) -> int:
        return self._thread.call(self._client.get_latest_lsn())

    def get_required_lsn(self) -> int:
        return self._thread.call(self._client.get_required_lsn())

    def set_required_lsn(self, lsn: int) -> None:
        """Keeps all records from an LSN on, even if truncated; 0 lifts this."""
        self._thread.call(self._client.set_required_lsn(lsn))

    def get_tso_timestamp(self, count: int = 1) -> int:
        """Reserves `count` unique timestamps; returns the first."""
        return self._thread.call(self._client.get_tso_timestamp(count))

    def update_leaseholder_id(self, holder: int) -> None:
        """Takes the shard's lease: the shard refuses appends of other holders from now on."""
        self._thread.call(self._client.update_leaseholder_id(holder))

    def seal(self) -> int:
        """Ends the log for ever; returns the LSN of its end."""
        return self._thread.call(self._client.seal())

    def info(self) -> ShardInfo:
        return self._thread.call(self._client.info())
