"""What a store tells HAKeeper of its replicas, and what it logs where nobody answers."""

import pytest

from raftwood.base.errors import DeadlineExceeded
from raftwood.logservice.hakeeper.messages import Orders, StoreHeartbeat
from raftwood.logservice.server.heartbeats import UNANSWERED_TOLD, Heartbeats
from raftwood.raft.node_host import GroupStatus
from tests.kits.running import run

STATUS = GroupStatus(
    group=7,
    store=1,
    role="leader",
    leader=1,
    term=3,
    first_index=1,
    last_index=100,
    commit=100,
    applied=100,
    snapshots=(),
    voters=(1, 2),
    learners=(3,),
    epoch=5,
    is_joint=False,
    is_asleep=False,
    waiting_bytes=0,
    cache_bytes=0,
    sessions=0,
    matches={1: 100, 2: 90, 3: 0},
    addresses={},
)


class Surroundings:
    """A host, a disk, an executor and a HAKeeper, as far as heartbeats need them."""

    id = 1
    incarnation = "a"
    disk_bytes = free_bytes = 0
    is_short = False

    def __init__(self) -> None:
        self.is_silent = False
        self.heard: list[StoreHeartbeat] = []

    def groups(self) -> list[int]:
        return [7]

    def halted(self) -> dict[int, str]:
        return {}

    def status(self, _: int) -> GroupStatus:
        return STATUS

    def finished(self) -> tuple[()]:
        return ()

    def take(self, _: Orders, __: tuple[()]) -> None: ...

    async def store_heartbeat(self, heartbeat: StoreHeartbeat, *, timeout_ms: int) -> Orders:
        if self.is_silent:
            raise DeadlineExceeded(f"nothing for {timeout_ms} ms")
        self.heard.append(heartbeat)
        return Orders(1, 1, ())


def heartbeats(around: Surroundings) -> Heartbeats:
    return Heartbeats(
        around,  # type: ignore[arg-type]
        around,  # type: ignore[arg-type]
        around,  # type: ignore[arg-type]
        around,  # type: ignore[arg-type]
        address="one:1",
        failure_domain="",
        version="1",
        period_ms=100,
        alarms=list,
        storage_of=lambda _: None,
    )


def test_a_member_that_has_never_answered_is_not_said_to_be_close() -> None:
    around = Surroundings()
    run(heartbeats(around).beat())
    (report,) = around.heard[0].replicas
    assert report.lagging == {2: 10}


def test_a_silent_hakeeper_is_told_of_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    around = Surroundings()
    beating = heartbeats(around)

    async def main() -> None:
        around.is_silent = True
        for _ in range(3 * UNANSWERED_TOLD):
            await beating.beat()
        assert not beating.is_heard
        around.is_silent = False
        await beating.beat()
        assert beating.is_heard

    run(main())
    said = capsys.readouterr()
    logged = said.out + said.err
    assert logged.count("HAKeeper does not answer") == 1
