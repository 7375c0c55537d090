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
    """Use `connect`, and `close` when done, or a `with` block."""

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
        """A client of a shard, by number or name; `addresses` are some stores', HOST:PORT[,…].

        The secret is the clients', or the readers' for one that only reads.
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
        """Calls of other threads end, and whether their records are written is unknown."""
        self._thread.stop(self._client.close)

    @property
    def config(self) -> LogClientConfig:
        return self._client.config

    # Records

    @staticmethod
    def get_log_record(size: int) -> RecordBuffer:
        """A record with room for so many bytes; it may be reused as soon as `append` returns."""
        return AsyncLogClient.get_log_record(size)

    def append(self, record: RecordBuffer | Buffer) -> int:
        """Durable on a majority when it returns; the record's LSN."""
        return self._thread.call(self._client.append(record))

    def append_soon(self, record: RecordBuffer | Buffer) -> "Future[int]":
        """As `append`, without waiting: one thread's records stay in order."""
        payload = record.payload if isinstance(record, RecordBuffer) else record
        return self._thread.begin(self._client.append(bytes(payload)))

    def append_many(self, records: Iterable[RecordBuffer | Buffer]) -> list[int]:
        """Append records in order, many at once; their LSNs."""
        # Taken here, as the iterable may be one that only this thread may use.
        return self._thread.call(self._client.append_many(list(records)))

    def append_once(self, record: RecordBuffer | Buffer, *, producer: str, sequence: int) -> int:
        """The same (producer, sequence) again, by whichever client, writes nothing twice."""
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
        """Records from an LSN on, and where to read next: the same LSN where all was read."""
        return self._thread.call(
            self._client.read(
                first_lsn, bytes_max=bytes_max, wait_ms=wait_ms, has_internal=has_internal
            )
        )

    def tail(self, first_lsn: int, *, bytes_max: int = READ_BYTES) -> Iterator[Record]:
        """Records from an LSN on, for ever: at the end it waits for more."""
        while True:
            records, first_lsn = self.read(first_lsn, bytes_max=bytes_max, wait_ms=TAIL_WAIT_MS)
            yield from records

    # The shard's state

    def truncate(self, lsn: int) -> None:
        """Let go of all records up to and with an LSN."""
        self._thread.call(self._client.truncate(lsn))

    def get_truncated_lsn(self) -> int:
        return self._thread.call(self._client.get_truncated_lsn())

    def get_latest_lsn(self) -> int:
        return self._thread.call(self._client.get_latest_lsn())

    def get_required_lsn(self) -> int:
        return self._thread.call(self._client.get_required_lsn())

    def set_required_lsn(self, lsn: int) -> None:
        """Keep all from an LSN on, whatever is truncated; 0 to let go."""
        self._thread.call(self._client.set_required_lsn(lsn))

    def get_tso_timestamp(self, count: int = 1) -> int:
        """The first of so many timestamps that nobody else gets."""
        return self._thread.call(self._client.get_tso_timestamp(count))

    def update_leaseholder_id(self, holder: int) -> None:
        """Take the shard's lease: appends of other holders are refused from now on."""
        self._thread.call(self._client.update_leaseholder_id(holder))

    def seal(self) -> int:
        """End the log for ever; the LSN of its end."""
        return self._thread.call(self._client.seal())

    def info(self) -> ShardInfo:
        return self._thread.call(self._client.info())
