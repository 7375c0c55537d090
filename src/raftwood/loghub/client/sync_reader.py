"""`Reader`: a shard or a logstore as an iterator, for programs without an event loop."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from raftwood.base.position import Position
from raftwood.disk.loop_thread import LoopThread
from raftwood.loghub.client.pulled_batches import LogRecord, PulledBatch
from raftwood.loghub.client.reader import TABLE_BYTES_MAX, TABLE_RECORDS_MAX, AsyncReader

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class Reader:
    """Made by `LogHubClient.reader`; the calls mean what they do in `AsyncReader`."""

    def __init__(self, thread: LoopThread, reader: AsyncReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def positions(self) -> dict[int, Position]:
        """Of each shard, behind the batches that were handed out whole."""
        return dict(self._reader.positions)

    @property
    def freed(self) -> int:
        """How often records were gone before they were read."""
        return self._reader.freed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.call(self._reader.close())

    def __iter__(self) -> Iterator[LogRecord]:
        # Decoded here, while the loop's thread reads ahead.
        while (batch := self._thread.call(self._reader.take_batch())) is not None:
            records = batch.records()
            yield from records[:-1]
            self._reader.note(batch)
            yield from records[-1:]

    def batches(self) -> Iterator[PulledBatch]:
        """Batches as they were stored."""
        while (batch := self._thread.call(self._reader.next_batch())) is not None:
            yield batch

    def to_arrow(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "pyarrow.Table":
        """What follows, up to the batch that reaches a bound; again, what follows then."""
        return self._thread.call(
            self._reader.to_arrow(records_max=records_max, bytes_max=bytes_max)
        )

    def to_pandas(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "pandas.DataFrame":
        return self._thread.call(
            self._reader.to_pandas(records_max=records_max, bytes_max=bytes_max)
        )

    def to_polars(
        self, *, records_max: int = TABLE_RECORDS_MAX, bytes_max: int = TABLE_BYTES_MAX
    ) -> "polars.DataFrame":
        return self._thread.call(
            self._reader.to_polars(records_max=records_max, bytes_max=bytes_max)
        )

    def commit(self) -> None:
        """Note for the group that what was handed out so far is dealt with."""
        self._thread.call(self._reader.commit())
