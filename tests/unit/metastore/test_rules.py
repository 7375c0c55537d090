"""The rules of the metastore alone: bytes in, bytes out, no store around them."""

import msgspec
import pytest

from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    OutOfRange,
    Overloaded,
    RaftwoodError,
    StoreDamaged,
    TooLarge,
    UnsupportedVersion,
)
from raftwood.base.seams import (
    Compare,
    KeyChange,
    KeyOperation,
    RemoveKey,
    SetKey,
    TransactionOutcome,
)
from raftwood.metastore import commands, rules
from raftwood.metastore.commands import (
    Command,
    ExpireLeases,
    GrantLease,
    KeepAlive,
    MetastoreDone,
    RevokeLease,
    Transact,
)
from raftwood.metastore.rules import LeaseDeadlines, MetastoreState, of_size


def apply(
    state: MetastoreState, command: Command, now_ms: int = 0
) -> MetastoreDone | TransactionOutcome:
    result = state.apply(commands.encode(command), now_ms)
    found = commands.decode_result(result)
    return found if isinstance(found, MetastoreDone) else commands.outcome(result)


def put(state: MetastoreState, *operations: KeyOperation, now_ms: int = 0) -> int:
    outcome = apply(state, Transact((), operations), now_ms)
    assert isinstance(outcome, TransactionOutcome)
    return outcome.version


def grant(state: MetastoreState, ttl_ms: int, now_ms: int = 0) -> int:
    done = apply(state, GrantLease(ttl_ms), now_ms)
    assert isinstance(done, MetastoreDone)
    return done.lease


def test_a_transaction_is_one_version_for_all_its_keys() -> None:
    state = MetastoreState()
    assert put(state, SetKey("a", b"1"), SetKey("b", b"2")) == 1
    assert put(state, RemoveKey("a"), SetKey("c", b"3")) == 2
    assert state.changes("", after_version=0) == [
        (KeyChange("b", b"2", 1),),
        (KeyChange("a", None, 2), KeyChange("c", b"3", 2)),
    ]


def test_a_transaction_that_changes_nothing_is_no_version() -> None:
    state = MetastoreState()
    put(state, SetKey("a", b""))
    assert put(state, RemoveKey("b")) == 1
    assert put(state) == 1
    lost = apply(state, Transact((Compare("a", 0),), (SetKey("a", b"x"),)))
    assert lost == TransactionOutcome(held=False, version=1)


def test_a_transaction_that_is_refused_leaves_no_trace() -> None:
    state = MetastoreState()
    lease = grant(state, 10)
    before = state.snapshot()
    with pytest.raises(NotFound):
        put(state, SetKey("a", b"", lease), SetKey("b", b"", lease + 1))
    assert state.snapshot() == before


def test_versions_do_not_begin_anew_after_a_removal() -> None:
    state = MetastoreState()
    put(state, SetKey("a", b""))
    put(state, RemoveKey("a"))
    outcome = apply(state, Transact((Compare("a", 0),), (SetKey("a", b""),)))
    assert outcome == TransactionOutcome(held=True, version=3)


def test_leases_that_end_together_end_by_number_and_one_version_each() -> None:
    state = MetastoreState()
    late, soon = grant(state, 30), grant(state, 10)
    put(state, SetKey("late", b"", late), SetKey("soon", b"", soon), SetKey("other", b""))
    apply(state, ExpireLeases(), now_ms=29)
    assert [each.key for each in state.range(prefix="", start="", end=None, limit=9).entries] == [
        "late",
        "other",
    ]
    soon = grant(state, 1, now_ms=29)
    put(state, SetKey("soon", b"", soon), now_ms=29)
    apply(state, ExpireLeases(), now_ms=1000)
    assert state.changes("", after_version=3) == [
        (KeyChange("late", None, 4),),
        (KeyChange("soon", None, 5),),
    ]
    assert state.next_deadline_ms is None


def test_a_lease_ends_before_the_command_that_comes_at_its_deadline() -> None:
    state = MetastoreState()
    lease = grant(state, 10)
    apply(state, KeepAlive(lease), now_ms=9)
    apply(state, KeepAlive(lease), now_ms=18)
    assert state.next_deadline_ms == 28
    with pytest.raises(NotFound, match="grant a new one"):
        apply(state, KeepAlive(lease), now_ms=28)


def test_a_key_set_under_a_lease_renews_it_and_leaves_the_lease_before() -> None:
    state = MetastoreState()
    first, second = grant(state, 10), grant(state, 10)
    put(state, SetKey("a", b"", first))
    put(state, SetKey("a", b"", second), now_ms=5)
    apply(state, ExpireLeases(), now_ms=14)
    assert state.get("a") is not None
    apply(state, RevokeLease(second), now_ms=14)
    apply(state, RevokeLease(second), now_ms=14)
    assert state.get("a") is None


def test_time_does_not_go_back() -> None:
    state = MetastoreState()
    lease = grant(state, 10, now_ms=100)
    apply(state, KeepAlive(lease), now_ms=50)
    assert (state.now_ms, state.next_deadline_ms) == (100, 110)


def test_removals_are_forgotten_beyond_a_bound_and_a_watch_from_there_is_refused() -> None:
    state = MetastoreState(removals_kept=2)
    for key in "abc":
        put(state, SetKey(key, b""))
    for key in "abc":
        put(state, RemoveKey(key))
    assert state.status().oldest_watch == 4
    assert [change.key for (change,) in state.changes("", after_version=4)] == ["b", "c"]
    with pytest.raises(OutOfRange, match="read the range again"):
        state.changes("", after_version=3)
    with pytest.raises(OutOfRange):
        state.changes("", after_version=7)


def test_a_store_that_is_full_refuses_more_until_something_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "STATE_BYTES_MAX", 100)
    state = MetastoreState()
    put(state, SetKey("a", bytes(60)))
    with pytest.raises(Overloaded, match="remove keys first"):
        put(state, SetKey("b", bytes(60)))
    put(state, RemoveKey("a"))
    put(state, SetKey("b", bytes(60)))


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (GrantLease(0), InvalidInput),
        (GrantLease(commands.TTL_MS_MAX + 1), InvalidInput),
        (Transact((), (SetKey("", b""),)), InvalidInput),
        (Transact((), (SetKey("k" * 513, b""),)), TooLarge),
        (Transact((Compare("\0", 1),), ()), InvalidInput),
        (Transact((), tuple(SetKey(f"{n}", b"") for n in range(65))), TooLarge),
        (Transact(tuple(Compare(f"{n}", 0) for n in range(65)), ()), TooLarge),
        (Transact((), (), (RemoveKey("a"), SetKey("a", b""))), InvalidInput),
        (Transact((), (SetKey("a", bytes(400 << 10)), SetKey("b", bytes(300 << 10)))), TooLarge),
        (
            Transact((), (SetKey("a", bytes(400 << 10)),), (SetKey("a", bytes(300 << 10)),)),
            TooLarge,
        ),
    ],
)
def test_a_command_beyond_the_limits_is_refused_and_changes_nothing(
    command: Command, error: type[RaftwoodError]
) -> None:
    state = MetastoreState()
    before = state.snapshot()
    with pytest.raises(error):
        apply(state, command)
    assert state.snapshot() == before


def test_what_is_no_command_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a command"):
        commands.decode_result(MetastoreState().apply(b"?", 0))


def filled() -> MetastoreState:
    state = MetastoreState()
    lease = grant(state, 500, now_ms=7)
    for number in range(2000):
        put(state, SetKey(f"k{number}", bytes(number % 90), lease if number % 5 == 0 else 0))
    put(state, RemoveKey("k3"), RemoveKey("k5"))
    return state


def test_a_state_comes_back_from_its_snapshot_whole() -> None:
    state = filled()
    again = MetastoreState.restored(state.snapshot())
    assert again.snapshot() == state.snapshot()
    for each in (state, again):
        apply(each, ExpireLeases(), now_ms=507)
    assert again.changes("", after_version=0) == state.changes("", after_version=0)
    assert again.snapshot() == state.snapshot()


def test_a_snapshot_is_of_the_moment_and_made_in_slices() -> None:
    state = filled()
    whole = state.snapshot()
    slices = state.snapshot_slices(1000)
    apply(state, ExpireLeases(), now_ms=10_000)
    put(state, SetKey("later", b""))
    made = list(slices)
    assert b"".join(made) == whole
    assert max(map(len, made)) < 1200
    pieces = list(of_size(made, 300))
    assert b"".join(pieces) == whole
    assert {len(piece) for piece in pieces[:-1]} == {300}


def test_a_snapshot_of_a_newer_format_is_refused() -> None:
    newer = msgspec.msgpack.encode([2, {"fields": "of another kind"}])
    with pytest.raises(UnsupportedVersion, match="format 2, this program reads up to 1: use"):
        MetastoreState.restored(newer)


@pytest.mark.parametrize(
    "data", [b"", b"?", msgspec.msgpack.encode([1, 2]), filled().snapshot()[:-9]]
)
def test_a_snapshot_that_is_none_is_told(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match="cannot be read"):
        MetastoreState.restored(data)


def test_deadlines_are_found_in_order_and_those_of_ended_leases_do_not_pile_up() -> None:
    deadlines = LeaseDeadlines()
    for lease in range(1000):
        deadlines.set(lease, deadline_ms=5000 - lease)
    deadlines.set(999, deadline_ms=6000)
    deadlines.set(998, deadline_ms=1)  # a deadline does not go back
    assert deadlines.next_ms == 5000 - 998
    assert deadlines.due(5000 - 996) == [996, 997, 998]
    assert deadlines.due(5000 - 996) == [996, 997, 998]
    for lease in range(1, 1000):
        deadlines.remove(lease)
    assert len(deadlines._heap) < 100
    assert deadlines.due(10_000) == [0]
    deadlines.remove(0)
    assert deadlines.next_ms is None
