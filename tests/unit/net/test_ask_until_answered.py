"""A request that follows the leader: which store is asked, for how long, and when it ends."""

import asyncio
import random
from collections.abc import Callable

import pytest
from tests.unit.net.conftest import Run

from raftwood.base.environment import Environment, SystemClock
from raftwood.base.errors import (
    DeadlineExceeded,
    InvalidInput,
    NotLeader,
    Overloaded,
    RaftwoodError,
    Unavailable,
)
from raftwood.net import Channel, Secret
from raftwood.net.stores import ATTEMPT_MS, ClientNetwork, Stores

GROUP = 7
ADDRESSES = {store: f"127.0.0.1:{store}" for store in (1, 2, 3)}


class Script:
    """Stores whose answers the test makes; it notes who was asked, when, and for how long."""

    def __init__(self, answer: Callable[[int], str | RaftwoodError]) -> None:
        self._answer = answer
        self.asked: list[int] = []
        self.moments_s: list[float] = []
        self.timeouts_ms: list[int] = []

    async def attempt(self, store: int, timeout_ms: int) -> str:
        self.asked.append(store)
        self.moments_s.append(asyncio.get_running_loop().time())
        self.timeouts_ms.append(timeout_ms)
        answer = self._answer(store)
        if isinstance(answer, DeadlineExceeded):
            await asyncio.sleep(timeout_ms / 1000)
        if isinstance(answer, RaftwoodError):
            raise answer
        return answer

    async def run(self, seconds: float) -> str:
        environment = Environment(SystemClock(), random.Random(3), None, None)  # type: ignore[arg-type]
        network = ClientNetwork(cluster="c", secret=Secret(b"a secret of some length"))
        stores = Stores(environment, network, ADDRESSES)
        try:
            return await stores.ask_until_answered(
                GROUP,
                self.attempt,
                lambda error, asked: stores.note_failure(GROUP, error, asked=asked),
                what="group 7",
                deadline=asyncio.get_running_loop().time() + seconds,
            )
        finally:
            await stores.close()


@pytest.fixture(autouse=True)
def all_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "is_connected", True)
    monkeypatch.setattr(Channel, "start", lambda _: None)


def test_the_store_that_is_said_to_lead_is_asked_next(in_virtual_time: Run) -> None:
    script = Script(lambda store: "done" if store == 3 else NotLeader("no", leader=3))
    assert in_virtual_time(script.run(10)) == "done"
    assert script.asked[-1] == 3
    assert len(script.asked) <= 2


def test_a_store_that_does_not_answer_is_left_for_another_one(in_virtual_time: Run) -> None:
    script = Script(lambda store: "done" if store == 2 else Unavailable("away"))
    assert in_virtual_time(script.run(10)) == "done"
    assert all(one != other for one, other in zip(script.asked, script.asked[1:], strict=False))


def test_a_store_that_is_overloaded_is_asked_again(in_virtual_time: Run) -> None:
    script = Script(lambda _: Overloaded("later"))
    with pytest.raises(DeadlineExceeded, match=r"group 7 did not answer in time \(later\)"):
        in_virtual_time(script.run(5))
    assert len(set(script.asked)) == 1
    assert 5 / 0.2 <= len(script.asked) <= 5 / 0.1 + 10
    gaps = [b - a for a, b in zip(script.moments_s, script.moments_s[1:], strict=False)]
    assert max(gaps) <= 0.21
    assert min(gaps[10:-1]) >= 0.09


def test_a_store_that_refuses_its_connection_does_not_keep_the_others_from_being_asked(
    in_virtual_time: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that has too many connections: the request has not been asked there at all."""
    monkeypatch.setattr(Channel, "is_connected", False)
    script = Script(lambda store: "done" if store == 3 else Overloaded("too many connections"))
    assert in_virtual_time(script.run(5)) == "done"


def test_each_silence_doubles_the_patience_up_to_the_deadline(in_virtual_time: Run) -> None:
    script = Script(lambda _: DeadlineExceeded("silence"))
    with pytest.raises(DeadlineExceeded):
        in_virtual_time(script.run(20))
    assert script.timeouts_ms[:3] == [ATTEMPT_MS, 2 * ATTEMPT_MS, 4 * ATTEMPT_MS]
    assert script.timeouts_ms[3] < 8 * ATTEMPT_MS
    assert script.moments_s[0] + 20 >= script.moments_s[-1] + script.timeouts_ms[-1] / 1000


def test_what_no_other_store_can_mend_ends_it(in_virtual_time: Run) -> None:
    script = Script(lambda _: InvalidInput("no such command"))
    with pytest.raises(InvalidInput):
        in_virtual_time(script.run(5))
    assert len(script.asked) == 1
