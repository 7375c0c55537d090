"""What a host owes its state machines and callers: extra files, a stop signal, bounds, figures."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping

import msgspec
import pytest
from tests.kits.raft.host_cluster import GROUP, SETTINGS, Cluster, Lines, run_cluster, write

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded, RaftwoodError, ShuttingDown
from raftwood.base.files import perform
from raftwood.base.metrics import Metrics
from raftwood.raft.state_machine import ExtraFiles, Stopped

TABLE = "/data/table"


class LinesInAFile(Lines):
    """Its snapshots have no chunk of worth: the lines travel as a file beside them."""

    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self.files = environment.files

    async def write_table(self) -> None:
        content = msgspec.msgpack.encode(self.lines)
        await perform(
            self.files,
            seam.Open(TABLE, create=True),
            seam.Truncate(TABLE, 0),
            seam.Write(TABLE, 0, [content]),
            seam.DataSync(TABLE),
            seam.Close(TABLE),
        )

    def save_snapshot(self, files: ExtraFiles, _: Stopped) -> Iterator[bytes]:
        files.add("table", TABLE)
        yield b"see the table"

    async def recover_from_snapshot(
        self, chunks: AsyncIterator[bytes], files: Mapping[str, str], _: Stopped
    ) -> None:
        assert [chunk async for chunk in chunks] == [b"see the table"]
        (size,) = await perform(self.files, seam.Size(files["table"]))
        (content,) = await perform(self.files, seam.Read(files["table"], 0, size))
        self.lines = msgspec.msgpack.decode(content, type=list[bytes])


def test_extra_files_travel_with_a_snapshot_to_a_follower_and_through_a_start() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            leader = await cluster.wait_for_leader()
            away = next(store for store in (1, 2, 3) if store != leader)
            cluster.machines[away].kill()
            await write(client, 40)
            left = [store for store in (1, 2, 3) if store != away]
            await cluster.agree(*left)
            for store in left:
                machine = cluster.hosts[store]._replicas[GROUP].applier.machine
                assert isinstance(machine, LinesInAFile)
                await machine.write_table()
                await client.admin.snapshot(GROUP, store=store)
            cluster.start(away)
            assert len(await cluster.agree(1, 2, 3)) == 40
            assert cluster.hosts[away].status(GROUP).snapshots != ()
            for store in (1, 2, 3):
                cluster.machines[store].power_off()
            cluster.start(1, 2, 3)
            await write(client, 1, start=40)
        assert len(await cluster.agree(1, 2, 3)) == 41

    run_cluster(scenario, machine=LinesInAFile)


class EndlessLines(Lines):
    """Its snapshots end when they are told to."""

    def save_snapshot(self, _: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:
        while not stopped():
            yield b"more"


def test_a_snapshot_under_way_is_given_up_when_its_group_stops() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 5)
        host = cluster.hosts[await cluster.wait_for_leader()]
        saving = asyncio.create_task(host.snapshot(GROUP))
        await asyncio.sleep(0.5)
        assert not saving.done()
        await host.stop_group(GROUP)
        with pytest.raises(ShuttingDown):
            await asyncio.wait_for(saving, 60)
        assert host._snapshot_files.stored() == []

    run_cluster(scenario, machine=lambda _: EndlessLines())


@pytest.mark.parametrize("bound", ["proposal_bytes_max", "host_proposal_bytes_max"])
def test_proposals_beyond_a_bound_are_refused_until_others_are_done(bound: str) -> None:
    settings = msgspec.structs.replace(SETTINGS, **{bound: 1 << 10})

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        host = cluster.hosts[await cluster.wait_for_leader()]
        ended: list[RaftwoodError | None] = []

        def propose() -> None:
            host.propose_batch(GROUP, [bytes(700)], lambda _, error: ended.append(error))

        propose()
        with pytest.raises(Overloaded, match="bytes wait to be committed"):
            for _ in range(3):
                propose()
        await cluster.until(lambda: len(ended) >= 1 and host.status(GROUP).waiting_bytes == 0)
        propose()
        await cluster.until(lambda: host.status(GROUP).waiting_bytes == 0)
        assert set(ended) == {None}

    run_cluster(scenario, settings=settings)


def test_reads_beyond_a_bound_are_refused() -> None:
    settings = msgspec.structs.replace(SETTINGS, reads_waiting_max=2)

    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        host = cluster.hosts[await cluster.wait_for_leader()]
        reads = [
            asyncio.create_task(host.read(GROUP, b"count", timeout_ms=5_000)) for _ in range(3)
        ]
        answers = await asyncio.gather(*reads, return_exceptions=True)
        assert answers[:2] == [b"0", b"0"]
        assert isinstance(answers[2], Overloaded)

    run_cluster(scenario, settings=settings)


def test_metrics_tell_what_a_host_leads_and_writes() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 5)
        leader = await cluster.wait_for_leader()
        for store, host in cluster.hosts.items():
            metrics = Metrics(store=str(store))
            host.register_metrics(metrics)
            lines = metrics.render().decode().splitlines()
            values = {line.split("{")[0]: float(line.split()[-1]) for line in lines if "{" in line}
            assert values["raftwood_raft_groups"] == 1
            assert values["raftwood_raft_groups_led"] == (store == leader)
            assert values["raftwood_raft_writes_total"] > 0

    run_cluster(scenario)
