"""Backup and restore of a shard, on stores and disks in a simulation."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    StoreDamaged,
    UnsupportedVersion,
)
from raftwood.base.files import (
    Files,
    ListDirectory,
    Open,
    Read,
    Truncate,
    Unlink,
    Write,
    perform,
)
from raftwood.logservice.client import backup as backup_module
from raftwood.logservice.client import backup as restore_module
from raftwood.logservice.client.backup import (
    MANIFEST,
    LogBackupManifest,
    back_up,
    check_backup,
    restore,
    sealed,
)
from raftwood.logservice.client.log_client import AsyncLogClient
from raftwood.logservice.errors import LsnTruncated, NotLeaseholder
from raftwood.logservice.hakeeper.commands import AddShard
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.net.stores import Stores
from tests.kits.logservice.log_cluster import CLIENT, LogCluster, address, run_log_cluster

FOLDER = "/backup"


@pytest.fixture(autouse=True)
def _in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_module, "READ_BYTES", 500)
    monkeypatch.setattr(restore_module, "BATCH_ENTRIES", 10)


class Backups:
    """A cluster with a shard that has records, holes, a lease and a truncation behind it."""

    def __init__(self, cluster: LogCluster, client: AsyncLogClient) -> None:
        self.cluster = cluster
        self.client = client
        self.files: Files = cluster.environment.files
        self.lsns: list[int] = []

    async def fill(self) -> None:
        client = self.client
        for number in range(60):
            self.lsns += await client.append_many([b"%d.%d" % (number, each) for each in range(3)])
            if number % 7 == 0:
                await client.get_tso_timestamp(10)
        await client.update_leaseholder_id(5)
        for _ in range(100):
            await client.get_tso_timestamp(1)  # a hole too large to be filled
        self.lsns += await client.append_many([b"late %d" % each for each in range(30)])
        await client.truncate(self.lsns[20])

    async def new_shard(self, name: str = "again") -> int:
        keeper = self.cluster.operator()
        shard = await keeper.number(AddShard(name, 3, 0, name))
        await keeper.close()
        await self.cluster.wait_for_leader(shard)
        return shard

    async def restore(
        self, shard: int, manifest: LogBackupManifest, folder: str = FOLDER, **options: Any
    ) -> None:
        stores = Stores(
            self.cluster.environment, CLIENT, {store: address(store) for store in (1, 2, 3)}
        )
        try:
            await restore(stores, shard, self.files, folder, manifest, **options)
        finally:
            await stores.close()


async def all_of(client: AsyncLogClient, lsn: int) -> list[tuple[int, bytes]]:
    """All records from an LSN on, a few at a time."""
    found: list[tuple[int, bytes]] = []
    while True:
        records, following = await client.read(lsn, bytes_max=500)
        found += [(each.lsn, each.data) for each in records]
        if following == lsn:
            return found
        lsn = following


def run_backups(scenario: Callable[[Backups], Awaitable[None]]) -> None:
    async def whole(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        async with await cluster.client(timeout_ms=60_000) as client:
            backups = Backups(cluster, client)
            await backups.fill()
            await scenario(backups)

    run_log_cluster(whole)


def test_a_restored_shard_has_the_same_records_at_the_same_lsns_and_goes_on() -> None:
    async def scenario(backups: Backups) -> None:
        old = backups.client
        log = (await old.info()).log
        manifest = await back_up(old, backups.files, FOLDER, file_bytes=2_000)
        assert len(manifest.files) > 2
        await old.append(b"after the backup")
        assert await check_backup(backups.files, FOLDER) == manifest
        shard = await backups.new_shard()
        await backups.restore(shard, manifest)
        async with await backups.cluster.client(shard) as new:
            restored = (await new.info()).log
            # An entry of raft's own in the new shard takes an LSN as well.
            assert restored.next_lsn >= log.next_lsn
            for name in ("first_lsn", "truncated_lsn", "required_lsn", "holder", "tso"):
                assert getattr(restored, name) == getattr(log, name), name
            expected = [each for each in await all_of(old, log.first_lsn) if each[0] < log.next_lsn]
            assert await all_of(new, log.first_lsn) == expected
            # From any LSN that a consumer may have stored, holes too.
            for lsn in range(log.first_lsn, log.next_lsn, 7):
                assert await all_of(new, lsn) == [each for each in expected if each[0] >= lsn]
            with pytest.raises(LsnTruncated):
                await new.read(backups.lsns[20])
            with pytest.raises(NotLeaseholder):
                await new.append(b"by nobody")
            await new.update_leaseholder_id(6)
            assert await new.get_tso_timestamp() == log.tso
            following = await new.append(b"goes on")
            assert following >= log.next_lsn
            records, _ = await new.read(log.next_lsn)
            assert [each.lsn for each in records] == [following]

    run_backups(scenario)


def test_a_sealed_shard_is_sealed_at_the_same_lsn_when_it_is_restored() -> None:
    async def scenario(backups: Backups) -> None:
        old = backups.client
        end = await old.seal()
        manifest = await back_up(old, backups.files, FOLDER)
        shard = await backups.new_shard()
        await backups.restore(shard, manifest)
        async with await backups.cluster.client(shard) as new:
            log, was = (await new.info()).log, (await old.info()).log
            assert (log.sealed_lsn, log.next_lsn, await new.seal()) == (end, end, end)
            assert await all_of(new, log.first_lsn) == await all_of(old, was.first_lsn)
            with pytest.raises(NotLeaseholder):
                await new.append(b"late")

    run_backups(scenario)


def test_a_restored_shard_is_truncated_by_lsn_and_freed_on_all_stores() -> None:
    async def scenario(backups: Backups) -> None:
        cluster = backups.cluster
        manifest = await back_up(backups.client, backups.files, FOLDER)
        shard = await backups.new_shard()
        await backups.restore(shard, manifest)
        async with await cluster.client(shard, timeout_ms=60_000) as new:
            await new.update_leaseholder_id(6)
            for _ in range(10):
                await new.append_many([b"more %d" % each for each in range(10)])
                await asyncio.sleep(0.6)
            records = await all_of(new, manifest.first_lsn)
            middle = len(records) - 50
            assert records[middle][0] > cluster.stores[1].host.applied(shard)
            await new.truncate(records[middle - 1][0])
            await cluster.until(
                lambda: all(
                    each.host.status(shard).first_index > 100 for each in cluster.stores.values()
                )
            )
            assert await all_of(new, records[middle][0]) == records[middle:]
            # Replicas begin anew from the visible snapshot, and know the same LSNs.
            await cluster.stop(1, 2, 3)
            cluster.start(1, 2, 3)
            await cluster.wait_for_leader(shard)
            assert await all_of(new, records[middle][0]) == records[middle:]
            last = await new.append(b"and on")
            assert last > records[-1][0]
            with pytest.raises(LsnTruncated):
                await new.read(records[middle - 1][0])

    run_backups(scenario)


class Interrupted(Exception):
    """Raised by who is told of the progress."""


def interrupt_after(most: int) -> Callable[[int, int], None]:
    def told(records: int, _: int) -> None:
        if records > most:
            raise Interrupted

    return told


def test_a_restore_goes_on_over_failovers_and_after_an_interruption() -> None:
    async def scenario(backups: Backups) -> None:
        cluster = backups.cluster
        log = (await backups.client.info()).log
        manifest = await back_up(backups.client, backups.files, FOLDER)
        shard = await backups.new_shard()

        async def fail_over() -> int:
            """How many records the leader that fails had restored."""
            leader = await cluster.wait_for_leader(shard)
            machine = cluster.stores[leader].host.machine(shard)
            assert isinstance(machine, LogStateMachine)
            records = machine.state.restore.records if machine.state.restore else 0
            cluster.machines[leader].power_off()
            await cluster.wait_for_leader(shard)
            cluster.start(leader)
            return records

        for most in (20, 60, 100):
            with pytest.raises(Interrupted):
                await backups.restore(shard, manifest, told=interrupt_after(most))
            assert most < await fail_over() < manifest.records
        async with await cluster.client(shard) as new:
            with pytest.raises(Conflict, match="is being restored"):
                await new.read(log.first_lsn)
            with pytest.raises(Conflict, match="is being restored"):
                await new.append(b"too early")
        restoring = asyncio.create_task(backups.restore(shard, manifest))
        await asyncio.sleep(0.01)
        await fail_over()
        await restoring
        async with await cluster.client(shard) as new:
            assert await all_of(new, log.first_lsn) == await all_of(backups.client, log.first_lsn)
        with pytest.raises(Conflict, match="only an empty shard"):
            await backups.restore(shard, manifest)

    run_backups(scenario)


def test_a_new_replica_of_a_restored_shard_learns_its_lsns_from_a_snapshot() -> None:
    async def scenario(backups: Backups) -> None:
        cluster = backups.cluster
        manifest = await back_up(backups.client, backups.files, FOLDER)
        shard = await backups.new_shard()
        with pytest.raises(Interrupted):
            await backups.restore(shard, manifest, told=interrupt_after(60))
        await asyncio.sleep(2)  # a hidden snapshot is taken, half way
        await backups.restore(shard, manifest)
        async with await cluster.client(shard, timeout_ms=60_000) as new:
            await new.update_leaseholder_id(6)
            records = await all_of(new, manifest.first_lsn)
            await new.truncate(records[99][0])
            await cluster.until(lambda: cluster.stores[3].host.status(shard).first_index > 1)
            kept = await all_of(new, records[100][0])
            cluster.start(4, joins=True)
            await cluster.until(lambda: cluster.is_running(4))
            cluster.machines[1].power_off()
            await cluster.until(
                lambda: (
                    shard in cluster.stores[4].host.groups()
                    and 4 in cluster.stores[4].host.status(shard).voters
                    and not cluster.stores[4].host.status(shard).is_joint
                )
            )
            # The new replica is needed for a majority, and leads in the end.
            cluster.machines[2].power_off()
            await cluster.until(lambda: cluster.leader(shard) in (3, 4))
            assert await new.append(b"last") > kept[-1][0]
            host = cluster.stores[cluster.leader(shard)].host
            if host.id == 3:
                await host.transfer_leadership(shard, 4, timeout_ms=5_000)
            await cluster.until(lambda: cluster.leader(shard) == 4)
            assert (await all_of(new, kept[0][0]))[:-1] == kept

    run_backups(scenario)


async def change(files: Files, path: str, offset: int, data: bytes) -> None:
    await perform(files, Open(path), Write(path, offset, [data]))


def test_a_flipped_byte_anywhere_is_found_and_its_file_named() -> None:
    async def scenario(backups: Backups) -> None:
        files = backups.files
        manifest = await back_up(backups.client, files, FOLDER, file_bytes=2_000)
        names = [*(file.name for file in manifest.files), MANIFEST]
        for number, name in enumerate(names):
            path = f"{FOLDER}/{name}"
            (data,) = await perform(files, Read(path, 0, 1 << 20))
            good = bytes(data)
            for offset in range(number, len(good), max(1, len(good) // 12)):
                if good[offset : offset + 1].isspace():
                    continue  # in the manifest it says nothing
                await change(files, path, offset, bytes([good[offset] ^ 4]))
                with pytest.raises((StoreDamaged, UnsupportedVersion), match=name):
                    await check_backup(files, FOLDER)
                await change(files, path, offset, good[offset : offset + 1])
        assert await check_backup(files, FOLDER) == manifest
        last = f"{FOLDER}/{manifest.files[-1].name}"
        await change(files, last, manifest.files[-1].length, b"more")
        with pytest.raises(StoreDamaged, match=manifest.files[-1].name):
            await check_backup(files, FOLDER)
        await perform(files, Unlink(last))
        with pytest.raises(StoreDamaged, match=manifest.files[-1].name):
            await check_backup(files, FOLDER)

    run_backups(scenario)


def test_a_manifest_of_a_newer_version_or_with_strange_files_is_refused() -> None:
    async def scenario(backups: Backups) -> None:
        manifest = await back_up(backups.client, backups.files, FOLDER)
        strange = msgspec.structs.replace(manifest.files[0], name="../secret")
        for changed, error in (
            (msgspec.structs.replace(manifest, version=2), UnsupportedVersion),
            (msgspec.structs.replace(manifest, files=(strange,)), StoreDamaged),
            (msgspec.structs.replace(manifest, next_lsn=1 << 62), StoreDamaged),
            (msgspec.structs.replace(manifest, records=manifest.records + 1), StoreDamaged),
            (msgspec.structs.replace(manifest, next_lsn=manifest.first_lsn + 5), StoreDamaged),
        ):
            path = f"{FOLDER}/{MANIFEST}"
            text = msgspec.json.encode(sealed(changed))
            await perform(
                backups.files, Open(path), Truncate(path, len(text)), Write(path, 0, [text])
            )
            with pytest.raises(error):
                await check_backup(backups.files, FOLDER)

    run_backups(scenario)


def test_an_interrupted_backup_is_refused_and_its_folder_is_not_used_again() -> None:
    async def scenario(backups: Backups) -> None:
        with pytest.raises(Interrupted):
            await back_up(backups.client, backups.files, FOLDER, told=interrupt_after(50))
        (names,) = await perform(backups.files, ListDirectory(FOLDER))
        assert names == ["records-00001.rwlb"]
        with pytest.raises(StoreDamaged, match="interrupted"):
            await check_backup(backups.files, FOLDER)
        with pytest.raises(AlreadyExists, match="not empty"):
            await back_up(backups.client, backups.files, FOLDER)

    run_backups(scenario)


def test_a_truncation_meanwhile_ends_a_backup_and_an_empty_shard_can_be_backed_up() -> None:
    async def scenario(backups: Backups) -> None:
        truncating: list[asyncio.Task[None]] = []

        def truncate(records: int, _: int) -> None:
            if not truncating and records > 50:
                work = backups.client.truncate(backups.lsns[150])
                truncating.append(asyncio.create_task(work))

        with pytest.raises(Conflict, match="truncated up to"):
            await back_up(backups.client, backups.files, FOLDER, told=truncate)
        await truncating[0]
        await backups.client.truncate(await backups.client.get_latest_lsn())
        manifest = await back_up(backups.client, backups.files, "/empty")
        assert (manifest.records, manifest.files) == (0, ())
        shard = await backups.new_shard()
        await backups.restore(shard, await check_backup(backups.files, "/empty"), "/empty")
        async with await backups.cluster.client(shard) as new:
            await new.update_leaseholder_id(6)
            assert await new.append(b"first") >= manifest.next_lsn

    run_backups(scenario)


def test_a_restore_without_a_majority_ends_in_time() -> None:
    async def scenario(backups: Backups) -> None:
        manifest = await back_up(backups.client, backups.files, FOLDER)
        shard = await backups.new_shard()
        for store in (1, 2):
            backups.cluster.machines[store].power_off()
        with pytest.raises(DeadlineExceeded):
            await backups.restore(shard, manifest)

    run_backups(scenario)
