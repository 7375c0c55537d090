"""Nodes on a real disk and real sockets: streaming, divergence, lag."""

from pathlib import Path

import pytest

from raftwood.base.errors import StoreDamaged, Unavailable
from raftwood.zeppelin.model import PartitionState
from raftwood.zeppelin.records import KeyWrite
from raftwood.zeppelin.replication.master import MasterReplication
from raftwood.zeppelin.replication.replica import ReplicaRole
from tests.kits.zeppelin.real_nodes import RealNode, changed, run_pair, topology, until


def test_a_write_is_done_once_the_slave_has_synced_it(tmp_path: Path) -> None:
    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two])
        await one.apply(told)
        sequence = one.write(KeyWrite(b"a", b"1"))
        await until(lambda: one.store.synced_sequence == sequence)
        assert one.replica.acks.reached == 0
        await two.apply(told)
        await until(lambda: one.replica.acks.reached == sequence)
        assert two.store.synced_sequence == sequence
        assert two.contents() == {b"a": b"1"}
        assert (one.replica.role, two.replica.role) == (ReplicaRole.MASTER, ReplicaRole.SLAVE)
        assert one.replica.may_write
        assert not two.replica.may_write
        assert one.replica.acks.replicas_with(sequence) == 1
        await until(lambda: two.replica.report().contact_ms is not None)

    run_pair(tmp_path, scenario)


def test_sessions_of_a_slave_have_each_their_own_number(tmp_path: Path) -> None:
    """What was on its way in a session before is not taken in another one."""

    async def scenario(one: RealNode, two: RealNode) -> None:
        sessions = []
        for epoch in (1, 3, 5):
            told = topology(epoch, [one, two])
            await one.apply(told)
            await two.apply(told)
            await until(lambda: one.replica.acks.replicas_with(one.store.last_sequence) == 1)
            following = two.replica.following
            assert following is not None
            standing = following.standing(one.id)
            assert standing is not None
            sessions.append(standing.session)
            # For a while it is master itself.
            await two.apply(topology(epoch + 1, [two, one]))
        assert len(set(sessions)) == 3

    run_pair(tmp_path, scenario)


def test_a_slave_tells_the_meta_server_all_that_it_acks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two], ack="written")
        await one.apply(told)
        await two.apply(told)
        with monkeypatch.context() as patched:
            # Its disk syncs nothing for now.
            patched.setattr(two.store._binlog, "_sync", lambda: None)
            sequence = one.write(KeyWrite(b"a", b"1"))
            await until(lambda: one.replica.acks.reached == sequence, timeout_s=5)
            reported = two.replica.report().position.sequence
            assert two.store.synced_sequence < sequence
        assert reported == sequence

    run_pair(tmp_path, scenario)


def test_a_master_whose_disk_takes_nothing_says_that_it_cannot_lead(tmp_path: Path) -> None:
    async def scenario(one: RealNode, two: RealNode) -> None:
        one.store._binlog.refusal = Unavailable("the disk is full")
        await one.apply(topology(1, [one, two]))
        assert (one.replica.may_write, one.replica.report().is_whole) == (False, False)
        one.store._binlog.refusal = None
        await one.apply(topology(2, [one, two]))
        assert (one.replica.may_write, one.replica.report().is_whole) == (True, True)

    run_pair(tmp_path, scenario)


def test_a_replica_whose_engine_takes_nothing_is_none_to_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreDamaged("a file of the engine is gone")

    async def scenario(one: RealNode, two: RealNode) -> None:
        await one.apply(topology(1, [one, two]))
        await until(lambda: one.store.applied_sequence == 1)
        with monkeypatch.context() as patched:
            patched.setattr(one.store.engine, "apply", fail)
            one.write(KeyWrite(b"a", b"1"))
            await until(lambda: not one.replica.report().is_whole, timeout_s=5)
        await until(lambda: one.replica.report().is_whole, timeout_s=5)
        assert one.contents() == {b"a": b"1"}

    run_pair(tmp_path, scenario)


def test_what_the_new_master_has_not_got_is_undone_on_the_old_one(tmp_path: Path) -> None:
    async def scenario(one: RealNode, two: RealNode) -> None:
        first = topology(1, [one, two])
        await one.apply(first)
        await two.apply(first)
        shared = one.write(KeyWrite(b"a", b"1"), KeyWrite(b"b", b"1"))
        await until(lambda: one.replica.acks.reached == shared)
        await two.apply(topology(2, [two, one]))
        one.write(KeyWrite(b"a", b"ghost"), KeyWrite(b"c", b"ghost"))
        two.write(KeyWrite(b"b", b"2"))
        await one.apply(topology(2, [two, one]))
        await until(lambda: two.replica.acks.reached == two.store.last_sequence)
        assert one.contents() == two.contents() == {b"a": b"1", b"b": b"2"}
        assert one.replica.report().is_whole

    run_pair(tmp_path, scenario)


def test_a_slave_comes_back_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two])
        await one.apply(told)
        await two.apply(told)
        first = one.write(KeyWrite(b"a", b"1"))
        await until(lambda: one.replica.acks.reached == first)
        await two.stop()
        one.write(KeyWrite(b"b", b"2"))
        await two.start(boot=2)
        await two.apply(told)
        await until(lambda: one.replica.acks.reached == one.store.last_sequence)
        assert two.contents() == {b"a": b"1", b"b": b"2"}

    run_pair(tmp_path, scenario)


@pytest.mark.parametrize("is_handed_over", [True, False])
def test_what_was_written_before_a_freeze_is_done_once_its_target_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_handed_over: bool
) -> None:
    """The target has told the meta server that it has it, be its ack to the master late or not."""

    async def scenario(one: RealNode, two: RealNode) -> None:
        told = topology(1, [one, two])
        await one.apply(told)
        await two.apply(told)
        await until(lambda: one.replica.acks.reached == 1)
        monkeypatch.setattr(MasterReplication, "acked", lambda *_: 0)
        sequence = one.write(KeyWrite(b"a", b"1"))
        stuck = changed(topology(2, [one, two]), state=PartitionState.STUCK, target=two.id)
        await one.apply(stuck)
        await two.apply(stuck)
        await until(lambda: two.store.synced_sequence == one.store.last_sequence > sequence)
        await until(lambda: one.store.synced_sequence == one.store.last_sequence)
        acks = one.replica.acks
        assert acks.reached < sequence
        lagging = () if is_handed_over else (one.id,)
        await one.apply(changed(topology(3, [two, one]), lagging=lagging))
        assert acks.is_over
        assert (acks.reached >= sequence) is is_handed_over

    run_pair(tmp_path, scenario)
