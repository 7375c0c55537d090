"""A bookie's folder: damage, a full disk, deleted ledgers, and the rules of its index."""

import asyncio
import random

import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, StoreDamaged, TooLarge, UnsupportedVersion
from raftwood.base.files import Read, perform
from raftwood.disk.segment_log import LogSettings
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.ledger_descriptor import EntryIndex, LedgerNote, decode_note, encode_note
from raftwood.dlog.bookie.server import GarbageRules
from raftwood.dlog.errors import BadDigest, BookieReadOnly, Fenced, NoSuchEntry, NoSuchLedger
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.testing import ImageRunner, RecordingFiles, Simulation, simulate
from tests.kits.disk.images import environment_over
from tests.kits.dlog.bookie_calls import KEY, packed

SMALL = LogSettings(segment_bytes=64 << 10, cache_bytes_max=0, full_retry_ms=50)


async def opened(environment: Environment, id_: str = "bookie") -> Bookie:
    return await Bookie.open(
        environment, "/data/bookie", cluster="bookies", id_=BookieId(id_), settings=SMALL
    )


def test_an_index_tells_where_each_entry_is_whatever_the_order_of_arrival() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        entries = rng.sample(range(400), rng.randrange(1, 200))
        entries.sort(key=lambda entry: entry + rng.randrange(60))
        index = EntryIndex()
        for entry in entries:
            index.add(entry)
        rebuilt = EntryIndex.of_arrivals(entries)
        expected = {entry: arrival for arrival, entry in enumerate(entries, 1)}
        for number in range(-1, 402):
            assert index.arrival_of(number) == expected.get(number, 0)
            assert rebuilt.arrival_of(number) == expected.get(number, 0)
        assert index.highest == rebuilt.highest == max(entries)
        assert index.next_arrival == rebuilt.next_arrival == len(entries) + 1


def test_a_note_of_a_newer_version_is_refused() -> None:
    note = LedgerNote(master_key=KEY, is_fenced=True, published=7)
    assert decode_note(encode_note(note), ledger=1) == note
    with pytest.raises(UnsupportedVersion):
        decode_note(b"\x02" + encode_note(note)[1:], ledger=1)
    for bad in (b"", b"\x01", b"\x01\xc0"):
        with pytest.raises(StoreDamaged):
            decode_note(bad, ledger=1)


def test_a_ledger_goes_after_two_looks_and_never_one_that_is_newer_than_the_look() -> None:
    rules = GarbageRules()
    assert rules.looked(held=[1, 2, 3], existing=[2]) == []
    assert rules.looked(held=[1, 2, 3, 4], existing=[2, 3]) == [1]
    assert rules.looked(held=[2, 3, 4], existing=[2]) == [4]
    assert rules.looked(held=[2, 3], existing=[2]) == [3]
    # It was there again in between: the count begins anew.
    assert rules.looked(held=[2], existing=[]) == []
    assert rules.looked(held=[2], existing=[2]) == []
    assert rules.looked(held=[2], existing=[]) == []


def test_dropped_ledgers_free_their_room() -> None:
    async def scenario(simulation: Simulation) -> None:
        bookie = await opened(simulation.environment)
        for ledger in range(20):
            for entry in range(20):
                assert bookie.add(packed(ledger, entry, b"x" * 1000), master_key=KEY) is None
            await bookie.write_last_confirmed(ledger, 0, KEY)
        full = bookie.statistics().disk_bytes
        bookie.drop(range(19))
        for _ in range(100):
            await asyncio.sleep(0.1)
            if bookie.statistics().disk_bytes < full // 2:
                break
        assert bookie.statistics().disk_bytes < full // 2
        assert bookie.ledgers() == [19]
        with pytest.raises(NoSuchLedger):
            await bookie.read(3, 0)
        await bookie.close()
        again = await opened(simulation.environment)
        assert again.ledgers() == [19]
        assert bytes(await again.read(19, 19)) == packed(19, 19, b"x" * 1000)
        await again.close()

    simulate(1, scenario)


def test_a_full_disk_makes_a_bookie_read_only_until_there_is_room_again() -> None:
    files = RecordingFiles()
    disk = files.file_system

    async def scenario() -> None:
        bookie = await opened(environment_over(files, 1))
        disk.capacity_bytes = disk.used_bytes()
        entry, refusal = 0, None
        while refusal is None and entry < 1_000:
            refusal = bookie.add(packed(1, entry, b"x" * 1000), master_key=KEY)
            entry += 1
            await asyncio.sleep(0.001)
        assert isinstance(refusal, BookieReadOnly)
        assert _takes_entries(bookie) is False
        assert bytes(await bookie.read(1, 0)) == packed(1, 0, b"x" * 1000)
        # There is a reserve for what protects acked entries.
        await bookie.fence(1, KEY)
        assert isinstance(bookie.add(packed(1, 5_000), master_key=KEY), Fenced)
        disk.capacity_bytes = None
        await asyncio.sleep(1.0)
        assert _takes_entries(bookie) is True
        assert bookie.add(packed(2, 0), master_key=KEY) is None
        await bookie.close()

    with ImageRunner() as runner:
        runner.run(scenario())


def _takes_entries(bookie: Bookie) -> bool:
    return not bookie.is_read_only


def test_a_damaged_entry_is_damage_and_never_a_missing_one() -> None:
    files = RecordingFiles()

    async def scenario() -> None:
        bookie = await opened(environment_over(files, 1))
        for entry in range(5):
            assert bookie.add(packed(1, entry, b"entry-%d" % entry), master_key=KEY) is None
        await bookie.fence(2, KEY)
        path = "/data/bookie/log/0000000001.segment"
        (data,) = await perform(files, Read(path, 0, SMALL.segment_bytes))
        files.file_system.flip_bit(path, offset=bytes(data).index(b"entry-3"))
        for entry in (0, 1, 2, 4):
            assert bytes(await bookie.read(1, entry)) == packed(1, entry, b"entry-%d" % entry)
        with pytest.raises(BadDigest):
            await bookie.read(1, 3)
        assert bookie.counts.damaged == 1
        with pytest.raises(NoSuchEntry):
            await bookie.read(1, 5)
        await bookie.close()
        with pytest.raises(StoreDamaged):  # nor is it forgotten by a restart
            await opened(environment_over(files, 2))

    with ImageRunner() as runner:
        runner.run(scenario())


def test_a_folder_of_another_bookie_is_refused() -> None:
    async def scenario(simulation: Simulation) -> None:
        await (await opened(simulation.environment)).close()
        with pytest.raises(InvalidInput, match="folder of bookie bookie, not of other"):
            await opened(simulation.environment, "other")
        await (await opened(simulation.environment)).close()

    simulate(1, scenario)


def test_an_entry_above_half_a_segment_is_refused_alone() -> None:
    async def scenario(simulation: Simulation) -> None:
        bookie = await opened(simulation.environment)
        error = bookie.add(packed(1, 0, b"x" * (40 << 10)), master_key=KEY)
        assert isinstance(error, TooLarge)
        assert bookie.ledgers() == []
        assert isinstance(bookie.add(b"short", master_key=KEY), InvalidInput)
        assert isinstance(bookie.add(packed(1, 0), master_key=b"k" * 65), InvalidInput)
        assert bookie.add(packed(1, 0), master_key=KEY) is None
        await bookie.close()

    simulate(1, scenario)
