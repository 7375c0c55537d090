"""Upkeep of logs: what is offloaded, and what does not keep it from going on."""

from raftwood.base.errors import Unavailable
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.log.meta import LogConfig
from raftwood.dlog.shared_logs import RetentionTask
from tests.kits.dlog.logs import Kit, read_all, run_logs
from tests.unit.dlog.log.test_offload import MemoryOffload


async def _filled(dlogs: Dlogs, name: str) -> None:
    await dlogs.create(name, LogConfig(entries_max=10))
    writer = await dlogs.open_writer(name)
    for number in range(100):
        await writer.append(b"%d" % number)
    await writer.close()


def test_closed_ledgers_are_offloaded_where_there_is_a_store_for_them() -> None:
    async def scenario(kit: Kit) -> None:
        store = MemoryOffload()
        dlogs = Dlogs(kit.environment, kit.metastore, kit.ledgers, offload=store)
        await _filled(dlogs, "a")
        await RetentionTask(kit.environment, dlogs, interval_ms=60_000).look()
        assert len(store.objects) >= 8
        assert len(await read_all(await dlogs.open_reader("a"))) == 100

    run_logs(scenario)


def test_a_store_that_fails_for_one_log_keeps_no_other_from_being_looked_after() -> None:
    class Failing(MemoryOffload):
        async def size(self, name: str) -> int:
            if name.startswith(failing):
                raise Unavailable("try again")
            return await super().size(name)

    failing = ""

    async def scenario(kit: Kit) -> None:
        nonlocal failing
        store = Failing()
        dlogs = Dlogs(kit.environment, kit.metastore, kit.ledgers, offload=store)
        await _filled(dlogs, "a")
        await _filled(dlogs, "b")
        failing = (await dlogs.info("a")).meta.token.hex()
        await RetentionTask(kit.environment, dlogs, interval_ms=60_000).look()
        token = (await dlogs.info("b")).meta.token.hex()
        assert {each.partition("/")[0] for each in store.objects} == {token}
        assert len(await read_all(await dlogs.open_reader("a"))) == 100

    run_logs(scenario)
