"""A log's record on each metastore: one folder, a raft group, ZooKeeper."""

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from raftwood.base.errors import OutOfRange
from raftwood.base.position import Position
from raftwood.base.seams import MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.errors import Fenced
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.meta import LogConfig
from raftwood.metastore.file_store import FileMetaStore
from raftwood.metastore.raft_store import RaftMetaStore
from tests.kits.dlog.memory_ledgers import MemoryLedgerStore
from tests.kits.metastore.group_in_memory import GROUP, GroupInMemory
from tests.kits.running import run
from tests.kits.servers.zookeeper import ZooKeeperServer
from tests.kits.servers.zookeeper_clients import opened

COUNT = 60


async def check(one: MetaStore, two: MetaStore) -> None:
    """Two processes, each with a metastore client of its own, take a log from one another."""
    ledgers = MemoryLedgerStore(delay_ms=0.2)
    with real_environment() as environment:
        processes = [Dlogs(environment, each, ledgers) for each in (one, two)]
        await processes[0].create("a/b", LogConfig(entries_max=7, grace_ms=1_000))
        reader = await processes[1].open_reader("a/b")
        seen: list[bytes] = []

        async def follow() -> None:
            async for each in reader.tail(Position(0)):
                seen.append(bytes(each.message.payload))  # noqa: PERF401

        tail = asyncio.create_task(follow())
        positions: dict[int, Position] = {}
        for turn in range(6):
            writer = await processes[turn % 2].open_writer("a/b")
            for number in range(turn * COUNT // 6):
                again = await writer.append(b"%d" % number, producer="p", sequence=number)
                assert again == positions[number]
            for number in range(turn * COUNT // 6, (turn + 1) * COUNT // 6):
                positions[number] = await writer.append(
                    b"%d" % number, producer="p", sequence=number
                )
            if turn % 3 == 0:
                await writer.close()
            else:
                fencing = await processes[(turn + 1) % 2].open_writer("a/b")
                with pytest.raises(Fenced):
                    await writer.append(b"late")
                await writer.close()
                await fencing.close()
        await processes[1].terminate("a/b")
        await asyncio.wait_for(tail, 30)
        assert seen == [b"%d" % number for number in range(COUNT)]
        await processes[0].shrink("a/b", positions[30])
        processes[1].metas.forget("a/b")
        with pytest.raises(OutOfRange):
            await reader.read(positions[29], bytes_max=100)
        assert (await reader.read(positions[30], bytes_max=100))[0][0].position == positions[30]
        await reader.close()
        await processes[0].remove("a/b")
        assert await processes[1].names() == []
    await ledgers.close()


def test_in_one_folder(tmp_path: Path) -> None:
    async def main() -> None:
        with real_environment() as environment:
            store = await FileMetaStore.open(environment, f"{tmp_path}/meta")
            await check(store, store)
            await store.close()

    run(main())


def test_on_raft() -> None:
    async def main() -> None:
        group = GroupInMemory()
        one, two = RaftMetaStore(group, GROUP), RaftMetaStore(group, GROUP)
        async with group.ticking():
            await check(one, two)
        await one.close()
        await two.close()

    run(main())


@pytest.mark.needs("zookeeper")
def test_in_zookeeper(zookeeper: ZooKeeperServer, request: pytest.FixtureRequest) -> None:
    address = f"{zookeeper.address}/{re.sub('[^a-zA-Z_]', '', request.node.name)}"

    async def main() -> None:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(opened(address, snapshot_entries=20))
            two = await stack.enter_async_context(opened(address))
            await check(one, two)

    run(main())
