"""A table's binlogs by the client: read from all masters, and looked for where they moved."""

from typing import Any

from raftwood.zeppelin.client import AsyncKv
from raftwood.zeppelin.client.binlogs import BinlogAnswer, BinlogWant
from raftwood.zeppelin.records import BinlogPosition, EpochStart, KeyWrite, decode_record
from raftwood.zeppelin.resp import ErrorAnswer
from raftwood.zeppelin.slots import slot_of
from tests.kits.zeppelin.static_cluster import StaticCluster
from tests.unit.zeppelin.client.test_async_kv import on_cluster

BEGIN = BinlogPosition(0, 0)


async def _read_all(kv: AsyncKv, **options: Any) -> list[BinlogAnswer]:
    told = await kv.binlogs.partitions()
    answers: list[BinlogAnswer] = []
    for address, partitions in kv.binlogs.by_master(told.partitions).items():
        assert address is not None
        wants = [BinlogWant(each.number, BEGIN, 1) for each in partitions]
        found = await kv.binlogs.read(address, "me", wants, **options)
        assert not isinstance(found, ErrorAnswer)
        answers += found.answers
    return answers


def test_all_changes_are_read_from_all_masters() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, *_: Any) -> None:
        told = await kv.binlogs.partitions()
        assert (told.table, told.incarnation, len(told.partitions)) == ("orders", 1, 6)
        await kv.set_many([(f"k{number}", "1") for number in range(100)])
        answers = await _read_all(kv)
        assert {each.partition for each in answers} == set(range(6))
        for answer in answers:
            keys = [write.key for each in answer.records for write in decode_record(each).writes]
            slots = told.partitions[answer.partition]
            assert all(slots.first <= slot_of(key) < slots.stop for key in keys)
        assert sum(len(decode_record(r).writes) for a in answers for r in a.records) == 100

        cluster.promote(0, "c")
        assert "moved" in {each.state for each in await _read_all(kv)}
        await kv.binlogs.look()
        assert {each.state for each in await _read_all(kv)} == {"records"}

    on_cluster(scenario)


def test_where_binlogs_part_and_what_keys_have_is_asked_of_the_master() -> None:
    async def scenario(kv: AsyncKv, cluster: StaticCluster, *_: Any) -> None:
        key = b"a"
        told = await kv.binlogs.partitions()
        partition = next(each for each in told.partitions if slot_of(key) < each.stop)
        await kv.set(key, "1")
        await kv.set("{a}ends", "2", px=100_000)
        cluster.promote(partition.number, "b")
        assert await kv.binlogs.common(partition, [EpochStart(2, 1)], last=9) == 2
        assert await kv.binlogs.common(partition, [EpochStart(1, 7)], last=9) is None
        keys = [key, b"{a}none", b"{a}ends"]
        now = await kv.binlogs.values(partition, keys, common=BinlogPosition(2, 1))
        assert now is not None
        assert now.position == BinlogPosition(2, 2)
        assert now.writes[:2] == (KeyWrite(key, b"1"), KeyWrite(b"{a}none", None))
        assert now.writes[2].expires_ms > 1_700_000_000_000
        assert await kv.binlogs.values(partition, keys, common=BinlogPosition(1, 1)) is None

    on_cluster(scenario)
