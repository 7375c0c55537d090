"""`AsyncLogClient`: one shard of the log service.

async with await AsyncLogClient.connect(environment, network, addresses, shard=7) as client:
    lsn = await client.append(b"a record")
    records, next_lsn = await client.read(lsn, bytes_max=1 << 20)
    async for record in client.tail(lsn): ...
    await client.truncate(lsn)
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, Self

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.logservice.client.append_pipeline import AppendPipeline, SingleAppends
from raftwood.logservice.client.shard_link import ShardLink, ask_store_addresses
from raftwood.logservice.errors import ReadOnlyClient
from raftwood.logservice.records import RECORD_HEAD_BYTES, SEALED, Record, UpdateKind
from raftwood.logservice.wire import (
    CONNECT,
    INFO,
    LOCATE,
    READ,
    UPDATE,
    ReadRequest,
    ShardInfo,
    ShardRequest,
    UpdateRequest,
    decode_record_views,
    decode_records,
    encode_read_request,
)
from raftwood.net import Payload
from raftwood.net.stores import ClientNetwork, Stores, discover

TIMEOUT_MS: Final = 10_000
TAIL_WAIT_MS: Final = 10_000
READ_BYTES: Final = 1 << 20
MANY_RECORDS: Final = 16_384
MANY_BYTES: Final = 32 << 20
"""The most bytes of `append_many` under way at once."""


class LogClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The client's settings."""

    shard: int
    is_read_only: bool = False
    timeout_ms: int = TIMEOUT_MS
    """The time for one call with all its attempts."""
    record_bytes_max: int = 0
    """The limit of the shard."""


class RecordBuffer:
    """A buffer for a record that the caller fills and appends again and again."""

    __slots__ = ("payload",)

    def __init__(self, size: int) -> None:
        self.payload = bytearray(size)


class AsyncLogClient:
    """Appends to one shard and reads it. Use `connect`, and `close` when done."""

    def __init__(
        self,
        environment: Environment,
        stores: Stores,
        config: LogClientConfig,
        *,
        owns_stores: bool,
    ) -> None:
        self.config = config
        self._stores = stores
        self._owns_stores = owns_stores
        self._link = ShardLink(stores, config.shard)
        self._pipeline = AppendPipeline(
            environment, self._link, record_bytes_max=config.record_bytes_max, holder=0
        )
        self._singles = SingleAppends(
            self._link, record_bytes_max=config.record_bytes_max, timeout_ms=config.timeout_ms
        )

    @classmethod
    async def connect(
        cls,
        environment: Environment,
        network: ClientNetwork,
        addresses: Sequence[str],
        *,
        shard: int | str,
        is_read_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Self:
        """Connects to a shard, by number or name; returns once its leader has answered."""
        found = await discover(environment, network, addresses, ask_store_addresses)
        stores = Stores(environment, network, found)
        try:
            return await cls.attach(
                environment,
                stores,
                shard=shard,
                is_read_only=is_read_only,
                timeout_ms=timeout_ms,
                owns_stores=True,
            )
        except BaseException:
            await stores.close()
            raise

    @classmethod
    async def attach(
        cls,
        environment: Environment,
        stores: Stores,
        *,
        shard: int | str,
        is_read_only: bool = False,
        timeout_ms: int = TIMEOUT_MS,
        owns_stores: bool = False,
    ) -> Self:
        """Like `connect`, over connections that others use as well."""
        number = shard if isinstance(shard, int) else await _number_of(stores, shard, timeout_ms)
        link = ShardLink(stores, number)
        try:
            # A reader must be able to connect while nothing can be written, such as on a full disk.
            method = INFO if is_read_only else CONNECT
            info = await link.ask(method, ShardRequest(number), timeout_ms=timeout_ms)
            link.learn(info.addresses)
        finally:
            await link.close()
        config = LogClientConfig(
            shard=number,
            is_read_only=is_read_only,
            timeout_ms=timeout_ms,
            record_bytes_max=info.record_bytes_max,
        )
        return cls(environment, stores, config, owns_stores=owns_stores)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the client; unanswered appends fail with `ConnectionLost`, outcome unknown."""
        await self._pipeline.close()
        await self._singles.close()
        await self._link.close()
        if self._owns_stores:
            await self._stores.close()

    # Records

    @staticmethod
    def get_log_record(size: int) -> RecordBuffer:
        """Returns a buffer of `size` bytes for a record, reusable as soon as `append` returns."""
        if size < 0:
            raise InvalidInput(f"a record of {size} bytes: give 0 or more")
        return RecordBuffer(size)

    async def append(self, record: RecordBuffer | Buffer) -> int:
        """Appends a record; returns its LSN once a majority has stored it durably."""
        return await self.append_soon(record)

    def append_soon(self, record: RecordBuffer | Buffer) -> "asyncio.Future[int]":
        """Like `append`, but does not wait: returns a future; records stay in order."""
        self._check_writer("append")
        payload = record.payload if isinstance(record, RecordBuffer) else record
        return self._pipeline.append(payload, self.config.timeout_ms)

    async def append_many(self, records: Iterable[RecordBuffer | Buffer]) -> list[int]:
        """Appends records in order, many at once; returns their LSNs.

        If some fail, raises the first error once all sent records are settled; the others may be
        written.
        """
        lsns: list[int] = []
        futures: list[asyncio.Future[int]] = []
        size = 0
        for record in records:
            try:
                futures.append(self.append_soon(record))
            except RaftwoodError:
                await _all_of(futures)  # the error of a sent record comes first
                raise
            size += len(record.payload if isinstance(record, RecordBuffer) else record)
            if len(futures) >= MANY_RECORDS or size >= MANY_BYTES:
                lsns += await _all_of(futures)
                futures, size = [], 0
        return lsns + await _all_of(futures)

    async def append_once(
        self, record: RecordBuffer | Buffer, *, producer: str, sequence: int
    ) -> int:
        """Appends a record under a name: if any client repeats the same (producer, sequence),
        nothing is written twice, and the LSN of the first time is returned.

        Sequences of one producer may come in any order, within the last `producers.WINDOW`.
        """
        payload = record.payload if isinstance(record, RecordBuffer) else record
        return await self.append_pieces(
            # The caller may reuse the buffer, even if it stops waiting before the append ends.
            (bytes(payload),),
            producer=producer.encode(),
            sequence=sequence,
        )

    async def append_pieces(
        self, pieces: Sequence[Buffer], *, producer: bytes, sequence: int
    ) -> int:
        """Like `append_once`, for a record in pieces of bytes, which must not change any more."""
        self._check_writer("append")
        return await self._singles.append(
            pieces, holder=self._pipeline.holder, producer=producer, sequence=sequence
        )

    async def read(
        self,
        first_lsn: int,
        *,
        bytes_max: int = READ_BYTES,
        wait_ms: int = 0,
        has_internal: bool = False,
    ) -> tuple[list[Record], int]:
        """Reads records from an LSN on; returns them and the LSN to read next.

        At the end of the log the next LSN is the same. `LsnTruncated` and `LsnPastEnd` carry the
        range that can be read.
        """
        request = ReadRequest(
            self.config.shard, first_lsn, bytes_max, wait_ms, has_internal=has_internal
        )
        return decode_records(await self._read(request))

    async def read_views(
        self, first_lsn: int, *, bytes_max: int = READ_BYTES, wait_ms: int = 0
    ) -> tuple[list[tuple[int, Payload]], int]:
        """Like `read`, but returns LSNs and payloads that are not copied."""
        request = ReadRequest(self.config.shard, first_lsn, bytes_max, wait_ms)
        lsns, _, data, next_lsn = decode_record_views(await self._read(request))
        return [
            (lsn, view[RECORD_HEAD_BYTES:]) for lsn, view in zip(lsns, data, strict=True)
        ], next_lsn

    async def _read(self, request: ReadRequest) -> Payload:
        return await self._link.ask_raw(
            READ,
            encode_read_request(request),
            timeout_ms=self.config.timeout_ms + request.wait_ms,
            wait_ms=request.wait_ms,
        )

    async def tail(self, first_lsn: int, *, bytes_max: int = READ_BYTES) -> AsyncIterator[Record]:
        """Yields records from an LSN on, for ever: at the end it waits for more."""
        while True:
            records, first_lsn = await self.read(
                first_lsn, bytes_max=bytes_max, wait_ms=TAIL_WAIT_MS
            )
            for record in records:
                yield record

    # The shard's state

    async def truncate(self, lsn: int) -> None:
        """Truncates all records up to and including an LSN; repeating it changes nothing."""
        self._check_writer("truncate")
        await self._update(UpdateKind.TRUNCATE, lsn)

    async def get_truncated_lsn(self) -> int:
        return (await self.info()).log.truncated_lsn

    async def get_latest_lsn(self) -> int:
        """Returns the LSN of the last entry: a record, or a later update of the shard."""
        return (await self.info()).latest_lsn

    async def get_required_lsn(self) -> int:
        """Returns the LSN from which on all is kept, truncated or not; 0 if none is set."""
        return (await self.info()).log.required_lsn

    async def set_required_lsn(self, lsn: int) -> None:
        """Keeps all records from an LSN on, even if truncated; 0 lifts this."""
        self._check_writer("require an LSN")
        await self._update(UpdateKind.REQUIRED, lsn)

    async def get_tso_timestamp(self, count: int = 1) -> int:
        """Reserves `count` unique timestamps; returns the first."""
        self._check_writer("take timestamps")
        return await self._update(UpdateKind.TSO, count)

    async def update_leaseholder_id(self, holder: int) -> None:
        """Takes the shard's lease: the shard refuses appends of other holders from now on.

        Raises `LeaseTooOld` if the id is not above the holder's. This client's later appends use
        the id.
        """
        self._check_writer("take the lease")
        await self._update(UpdateKind.LEASEHOLDER, holder)
        self._pipeline.holder = holder

    async def seal(self) -> int:
        """Ends the log for ever: the shard refuses later appends. Returns the LSN of its end, above
        all records ever appended; repeating it returns the same.
        """
        self._check_writer("seal the log")
        await self._update(UpdateKind.LEASEHOLDER, SEALED)
        return (await self.info()).log.sealed_lsn

    async def info(self) -> ShardInfo:
        """Returns the shard's figures, with all that was acknowledged before the call."""
        request = ShardRequest(self.config.shard)
        return await self._link.ask(INFO, request, timeout_ms=self.config.timeout_ms)

    async def _update(self, kind: UpdateKind, number: int) -> int:
        request = UpdateRequest(self.config.shard, kind, number)
        return await self._link.ask(UPDATE, request, timeout_ms=self.config.timeout_ms)

    def _check_writer(self, what: str) -> None:
        if self.config.is_read_only:
            raise ReadOnlyClient(
                f"this client of shard {self.config.shard} only reads: it cannot {what}"
            )


async def _all_of(futures: "list[asyncio.Future[int]]") -> list[int]:
    if futures:
        try:
            await asyncio.wait(futures)
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
    # Each future is asked for its exception: the event loop prints exceptions never retrieved.
    for error in [future.exception() for future in futures]:
        if error is not None:
            raise error
    return [future.result() for future in futures]


async def _number_of(stores: Stores, name: str, timeout_ms: int) -> int:
    link = ShardLink(stores, 0)
    try:
        location = await link.ask(LOCATE, name, timeout_ms=timeout_ms)
        link.learn(location.addresses)
        return location.shard
    finally:
        await link.close()
