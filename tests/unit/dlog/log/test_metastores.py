"""A log's record on each metastore: one folder, a raft group, ZooKeeper."""

from pathlib import Path

from raftwood.disk.real_environment import real_environment
from raftwood.metastore.file_store import FileMetaStore
from raftwood.metastore.raft_store import RaftMetaStore
from tests.kits.dlog.metastores import check
from tests.kits.metastore.group_in_memory import GROUP, GroupInMemory
from tests.kits.running import run


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
