"""What logs do on any metastore."""

import asyncio

import pytest

from raftwood.base.errors import OutOfRange
from raftwood.base.position import Position
from raftwood.base.seams import MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.errors import Fenced
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.meta import LogConfig
from tests.kits.dlog.memory_ledgers import MemoryLedgerStore

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
        await asyncio.wait_for(tail, 60)
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
