"""When a receiver counts as unable to store: by rules, without a clock."""

from raftwood.clogs.receiver import FAILING_S_MIN, FAILURES_MIN, SHUNNED_S, StorageHealth


def failed(health: StorageHealth, *times: float) -> None:
    for each in times:
        health.failed(each)


def test_a_receiver_is_usable_until_batch_after_batch_fails_for_a_while() -> None:
    health = StorageHealth()
    assert health.is_usable(0.0)
    failed(health, *(0.0,) * 10)
    assert health.is_usable(0.0)  # all in one moment
    health.failed(FAILING_S_MIN)
    assert not health.is_usable(FAILING_S_MIN)
    few = StorageHealth()
    failed(few, *(5.0 * number for number in range(FAILURES_MIN - 1)))
    assert few.is_usable(5.0)


def test_one_batch_that_is_stored_makes_it_usable() -> None:
    health = StorageHealth()
    failed(health, 0.0, 2.0, 4.0)
    assert not health.is_usable(4.0)
    health.stored()
    assert health.is_usable(4.0)
    failed(health, 5.0, 5.1)
    assert health.is_usable(5.1)


def test_a_while_after_the_last_failure_it_gets_another_chance() -> None:
    health = StorageHealth()
    failed(health, 0.0, 2.0, 4.0)
    assert not health.is_usable(4.0 + SHUNNED_S - 0.1)
    assert health.is_usable(4.0 + SHUNNED_S)
    failed(health, 20.0, 20.1)
    assert health.is_usable(20.1)  # counted anew
    failed(health, 22.0)
    assert not health.is_usable(22.0)
