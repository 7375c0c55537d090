"""A logstore on a gateway in this process, and an archive of it in a folder."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import raftwood
from raftwood.base.compression import Codec
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.client import LogHubClient
from raftwood.loghub.wire import PutRequest, encode_put
from raftwood.pipeline.archive.archiver import Archiver, ArchiveReport
from raftwood.pipeline.archive.manifest import ArchiveLog
from raftwood.pipeline.hub import Hub as PipelineHub
from raftwood.pipeline.options import StreamAccess
from tests.kits.loghub.hub import LOGSTORE, PROJECT, Hub, hub
from tests.kits.running import run


class ArchivedLogstore:
    """Everything from one thread that is not the gateway's."""

    def __init__(self, made: Hub, folder: Path) -> None:
        self.hub = made
        self.uri = str(folder / "archive")
        self.access = StreamAccess(
            gateways=tuple(made.addresses),
            access_key=made.key.id,
            access_secret=made.key.secret,
            project=PROJECT,
            logstore=LOGSTORE,
        )
        self.written: dict[str, int] = {}
        """Each message, and its number."""

    def client(self) -> LogHubClient:
        access = self.access
        return LogHubClient.connect(
            access.gateways, access_key=access.access_key, access_secret=access.access_secret
        )

    def put(self, count: int, *, is_arrow: bool = False) -> None:
        """Records whose time in seconds is their number."""
        numbers = range(len(self.written), len(self.written) + count)
        with self.client() as client, client.producer(PROJECT, LOGSTORE) as producer:
            if is_arrow:
                table = {
                    "__time__": list(numbers),
                    "message": [f"m{number}" for number in numbers],
                    "number": [str(number) for number in numbers],
                }
                producer.send_arrow(pyarrow.table(table), key=str(numbers[0]))
            for number in () if is_arrow else numbers:
                contents = {"message": f"m{number}", "number": str(number)}
                producer.send(contents, key=str(number), time_ns=number * 1_000_000_000)
        self.written |= {f"m{number}": number for number in numbers}

    def put_unreadable(self, body: bytes, *, shard: int = 0) -> None:
        """A batch that says to be a LogGroup, whatever it is."""
        batch = Batch(
            body=body, format=Format.LOG_GROUP, codec=Codec.NONE, raw_bytes=len(body), records=1
        )
        request = PutRequest(PROJECT, LOGSTORE, shard, "", 0, batch)
        with PipelineHub.connect(self.access) as hub:
            hub.begin(hub.put(encode_put(request), shard=shard)).result()

    def archiver(self, *, is_truncating: bool = False, **options: Any) -> Archiver:
        return Archiver.with_arrow(self.access, self.uri, is_truncating=is_truncating, **options)

    def archive(self, *, is_truncating: bool = False, **options: Any) -> ArchiveReport:
        return self.archiver(is_truncating=is_truncating, **options).run()

    def read(self, **options: Any) -> Any:
        return raftwood.read(
            PROJECT,
            LOGSTORE,
            archive=self.uri,
            gateways=",".join(self.access.gateways),
            access_key=self.access.access_key,
            access_secret=self.access.access_secret,
            **options,
        )

    def messages(self, **options: Any) -> list[str]:
        found = self.read(columns=["message"], **options)
        return list(found.column("message").to_pylist())


def with_logstore(
    folder: Path, work: Callable[[ArchivedLogstore], None], *, shards: int = 2
) -> None:
    """Do something with a new logstore."""

    async def main() -> None:
        async with hub(folder, shards=shards) as made:
            await asyncio.to_thread(work, ArchivedLogstore(made, folder))

    run(main())


def step(logstore: ArchivedLogstore, rng: random.Random) -> None:
    """One thing that may happen to it."""
    match rng.randrange(8):
        case 0 | 1 | 2:
            logstore.put(rng.randint(1, 20), is_arrow=rng.random() < 0.3)
        case 3:
            logstore.archive()
        case 4 | 5:
            logstore.archive(is_truncating=True)
        case 6:
            delete_emptied(logstore)
        case _:
            with logstore.client() as client:
                shards = client.shards(PROJECT, LOGSTORE)
                writable = [each.id for each in shards if each.ends_at is None]
                if len(shards) < 8:
                    client.split_shard(PROJECT, LOGSTORE, shard=rng.choice(writable))


class Meddling:
    """Whenever a reader looks at something, the logstore may have been written to, archived,
    truncated and split since its last look.
    """

    def __init__(
        self, logstore: ArchivedLogstore, rng: random.Random, patch: pytest.MonkeyPatch
    ) -> None:
        self._logstore = logstore
        self._rng = rng
        self._is_on = False
        for owner, name in (
            (PipelineHub, "details"),
            (PipelineHub, "heads"),
            (PipelineHub, "begin_pull"),
            (ArchiveLog, "manifest"),
        ):
            patch.setattr(owner, name, self._meddled(getattr(owner, name)))

    @contextmanager
    def on(self) -> Iterator[None]:
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def _meddled(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def after_a_step(*given: Any, **more: Any) -> Any:
            if self._is_on and self._rng.random() < 0.4:
                self._is_on = False  # what happens meanwhile looks at the same things
                step(self._logstore, self._rng)
                self._is_on = True
            return real(*given, **more)

        return after_a_step


def delete_emptied(logstore: ArchivedLogstore) -> None:
    """As retention does with shards that have ended, once nothing is left in them; where a parent
    is gone already, whoever is late would not learn where that one ended.
    """
    with logstore.client() as client:
        details = client.describe(PROJECT, LOGSTORE)
        there = {each.shard.id for each in details}
        for each in details:
            is_empty = each.shard.ends_at is not None and each.first == each.next
            if is_empty and there.issuperset(each.shard.parents):
                client.delete_shard(PROJECT, LOGSTORE, shard=each.shard.id)
                return
