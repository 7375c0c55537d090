"""`Kv`: a table of Zeppelin for programs without an event loop.

    with Kv.connect("127.0.0.1:6379", user="default", password=PASSWORD) as kv:
        kv.set("greeting", "hello", ex=60)
        table = kv.get_arrow(keys)

A thin facade: the real client runs on an event loop in a thread of its own, and any number of
threads may call it. The calls are those of `AsyncKv`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from raftwood.base.errors import RaftwoodError
from raftwood.disk.loop_thread import LoopThread
from raftwood.net.tls import ClientTls
from raftwood.zeppelin.client.async_kv import SCAN_COUNT, TIMEOUT_MS, AsyncKv
from raftwood.zeppelin.client.bulk import NamedRows
from raftwood.zeppelin.client.checkpoints import (
    TTL_MS,
    AsyncCheckpoint,
    CheckpointAbout,
    PartitionPlace,
)
from raftwood.zeppelin.client.nodes import ReadFrom
from raftwood.zeppelin.pages import Page
from raftwood.zeppelin.records import BinlogPosition
from raftwood.zeppelin.resp import Word

if TYPE_CHECKING:
    import pyarrow


class KvCheckpoint:
    """Like `AsyncCheckpoint`. Call `Kv.checkpoint`, and `end` when done, or use `with`."""

    def __init__(self, thread: LoopThread, checkpoint: AsyncCheckpoint) -> None:
        self._thread = thread
        self._checkpoint = checkpoint

    @property
    def about(self) -> CheckpointAbout:
        return self._checkpoint.about

    @property
    def position(self) -> BinlogPosition:
        return self._checkpoint.position

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RaftwoodError):
            self.end()

    def pages(self, cursor: bytes = b"", **options: Any) -> Iterator[Page]:
        return self._thread.each_of(self._checkpoint.pages(cursor, **options))

    def arrow_pages(self, cursor: bytes = b"", **options: Any) -> "Iterator[pyarrow.RecordBatch]":
        return self._thread.each_of(self._checkpoint.arrow_pages(cursor, **options))

    def renew(self) -> None:
        self._thread.call(self._checkpoint.renew())

    def end(self) -> None:
        self._thread.call(self._checkpoint.end())


class Kv:
    """A table's client. Call `connect`, and `close` when done, or use a `with` block."""

    def __init__(self, thread: LoopThread, client: AsyncKv) -> None:
        self._thread = thread
        self._client = client

    @classmethod
    def connect(
        cls,
        addresses: str | Sequence[str],
        *,
        user: str,
        password: str,
        tls: ClientTls | None = None,
        read_from: ReadFrom = "masters",
        timeout_ms: int = TIMEOUT_MS,
    ) -> Self:
        """Connects to a table; returns once a node has answered. `addresses` are HOST:PORT[,…]."""
        return cls(
            *LoopThread.with_client(
                "raftwood-kv-client",
                lambda environment: AsyncKv.connect(
                    addresses,
                    user=user,
                    password=password,
                    tls=tls,
                    read_from=read_from,
                    timeout_ms=timeout_ms,
                    environment=environment,
                ),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.stop(self._client.close)

    # One key

    def get(self, key: Word) -> bytes | None:
        return self._thread.call(self._client.get(key))

    @overload
    def set(
        self,
        key: Word,
        value: Word,
        *,
        ex: int | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
        keepttl: bool = False,
        get: Literal[False] = False,
    ) -> bool: ...

    @overload
    def set(
        self,
        key: Word,
        value: Word,
        *,
        ex: int | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
        keepttl: bool = False,
        get: Literal[True],
    ) -> bytes | None: ...

    def set(self, key: Word, value: Word, **options: Any) -> bool | bytes | None:
        return self._thread.call(self._client.set(key, value, **options))  # type: ignore[no-any-return]

    def cas(
        self,
        key: Word,
        expected: Word,
        value: Word,
        *,
        ex: int | None = None,
        px: int | None = None,
        keepttl: bool = False,
    ) -> bool:
        return self._thread.call(
            self._client.cas(key, expected, value, ex=ex, px=px, keepttl=keepttl)
        )

    def incr(self, key: Word, amount: int = 1) -> int:
        return self._thread.call(self._client.incr(key, amount))

    def append(self, key: Word, value: Word) -> int:
        return self._thread.call(self._client.append(key, value))

    def getset(self, key: Word, value: Word) -> bytes | None:
        return self._thread.call(self._client.getset(key, value))

    def getdel(self, key: Word) -> bytes | None:
        return self._thread.call(self._client.getdel(key))

    def expire(self, key: Word, *, ex: int | None = None, px: int | None = None) -> bool:
        return self._thread.call(self._client.expire(key, ex=ex, px=px))

    def persist(self, key: Word) -> bool:
        return self._thread.call(self._client.persist(key))

    def ttl_ms(self, key: Word) -> int | None:
        return self._thread.call(self._client.ttl_ms(key))

    def strlen(self, key: Word) -> int:
        return self._thread.call(self._client.strlen(key))

    def exists(self, key: Word) -> bool:
        return self._thread.call(self._client.exists(key))

    def delete(self, *keys: Word) -> int:
        return self._thread.call(self._client.delete(*keys))

    def command(self, *words: Word, reads: bool = False) -> Any:
        return self._thread.call(self._client.command(*words, reads=reads))

    def time_us(self) -> int:
        """The clock of a node, in microseconds since 1970."""
        return self._thread.call(self._client.time_us())

    # Many keys

    def get_many(self, keys: Iterable[Word]) -> list[bytes | None]:
        return self._thread.call(self._client.get_many(keys))

    def set_many(
        self, pairs: Mapping[Any, Word] | Iterable[tuple[Word, Word]], *, px: int | None = None
    ) -> None:
        self._thread.call(self._client.set_many(pairs, px=px))

    def incr_many(
        self, amounts: Mapping[Any, int] | Iterable[tuple[Word, int]], *, px: int | None = None
    ) -> None:
        self._thread.call(self._client.incr_many(amounts, px=px))

    def delete_many(self, keys: Iterable[Word]) -> int:
        return self._thread.call(self._client.delete_many(keys))

    def write_named(
        self, rows: Iterable[NamedRows], *, operation: Literal["set", "increment"] = "set"
    ) -> None:
        self._thread.call(self._client.write_named(rows, operation=operation))

    # Keys with one tag

    def tag_list(
        self, tag: Word, *, match: Word | None = None, count: int | None = None
    ) -> dict[bytes, bytes]:
        return self._thread.call(self._client.tag_list(tag, match=match, count=count))

    def tag_delete(self, tag: Word) -> int:
        return self._thread.call(self._client.tag_delete(tag))

    def transaction(self, commands: Iterable[Sequence[Word]]) -> list[Any]:
        return self._thread.call(self._client.transaction(commands))

    # All keys

    def scan(self, match: Word | None = None, *, count: int = SCAN_COUNT) -> Iterator[bytes]:
        return self._thread.each_of(self._client.scan(match, count=count))

    def size(self) -> int:
        return self._thread.call(self._client.size())

    def flush(self) -> None:
        self._thread.call(self._client.flush())

    # Arrow

    def put_arrow(
        self,
        data: "pyarrow.Table | pyarrow.RecordBatch",
        *,
        key: str = "key",
        value: str = "value",
        ttl_ms: int | str | None = None,
    ) -> int:
        return self._thread.call(self._client.put_arrow(data, key=key, value=value, ttl_ms=ttl_ms))

    def get_arrow(self, keys: "Iterable[Word] | pyarrow.Array") -> "pyarrow.Table":
        return self._thread.call(self._client.get_arrow(keys))

    def scan_arrow(
        self, match: Word | None = None, *, count: int = SCAN_COUNT
    ) -> "Iterator[pyarrow.Table]":
        return self._thread.each_of(self._client.scan_arrow(match, count=count))

    # Partitions as of one moment

    def partitions(self) -> list[PartitionPlace]:
        return self._thread.call(self._client.partitions())

    def checkpoint(self, partition: int, *, ttl_ms: int = TTL_MS, group: str = "") -> KvCheckpoint:
        begun = self._thread.call(self._client.checkpoint(partition, ttl_ms=ttl_ms, group=group))
        return KvCheckpoint(self._thread, begun)

    def renew_checkpoints(self, group: str, addresses: Iterable[str]) -> int:
        return self._thread.call(self._client.renew_checkpoints(group, addresses))

    def end_checkpoints(self, group: str, addresses: Iterable[str]) -> int:
        return self._thread.call(self._client.end_checkpoints(group, addresses))

    def checkpoint_of(self, about: CheckpointAbout) -> KvCheckpoint:
        return KvCheckpoint(self._thread, self._client.checkpoint_of(about))
