"""Who may hold a listener's connections: the rules against a model, with planted bugs; the RPC
server with clients that never log in.
"""

import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.kits.models import Mutant, replaced, weathers
from tests.kits.net.rpc import ECHO, Handlers, dial, raw_peer, serving
from tests.kits.running import run, until

from raftwood.base.errors import Overloaded
from raftwood.base.metrics import Metrics
from raftwood.base.settings import ConnectionSettings
from raftwood.net import ServerLimits
from raftwood.net.listeners import BOUND_MIN, ConnectionAdmission
from raftwood.net.wire_errors import decode_error

TOTAL = 100
SETTINGS = ConnectionSettings(address_percent=40, unauthenticated_percent=30)
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")


class Model:
    """Every connection with what is known of it, looked at as a whole at each step."""

    def __init__(self) -> None:
        self.admission: ConnectionAdmission[int] = ConnectionAdmission(TOTAL, SETTINGS)
        self.addresses: dict[int, str] = {}
        self.waiting: dict[int, None] = {}
        """Not logged in, the oldest first."""
        self.number = 0

    def enter(self, address: str) -> int | None:
        self.number += 1
        before = self.counts(self.waiting)
        proven = set(self.addresses) - set(self.waiting)
        of_address = [each for each in proven if self.addresses[each] == address]
        entered = self.admission.enter(self.number, address)
        victim = entered.displaced
        if entered.refusal:
            full = len(of_address) == self.admission.address_max or len(proven) == TOTAL
            assert full, "refused although others had not logged in"
            return None
        if victim is not None:
            assert victim not in proven, "one that had logged in was displaced"
            own = self.addresses[victim]
            older = [each for each in self.waiting if self.addresses[each] == own]
            assert victim == older[0], "not the oldest was displaced"
            is_busiest = before[own] == max(before.values())
            assert is_busiest or own == address, "a quiet address paid for a busy one"
            self.leave(victim)
        self.addresses[self.number] = address
        self.waiting[self.number] = None
        return self.number

    def leave(self, connection: int) -> None:
        self.waiting.pop(connection, None)
        del self.addresses[connection]

    def counts(self, connections: Any) -> dict[str, int]:
        found = dict.fromkeys(ADDRESSES, 0)
        for each in connections:
            found[self.addresses[each]] += 1
        return found

    def check(self) -> None:
        admission = self.admission
        assert admission.count == len(self.addresses) <= TOTAL, "more than there may be"
        assert admission.unauthenticated_count == len(self.waiting) <= admission.unauthenticated_max
        assert max(self.counts(self.addresses).values()) <= admission.address_max, "of one address"


def strangers_and_clients(seed: int) -> None:
    """Some address opens many and says nothing; clients come, log in and go."""
    source = random.Random(seed)
    model = Model()
    admission = model.admission
    for _ in range(600):
        match source.random():
            case chance if chance < 0.5:
                model.enter(source.choice(ADDRESSES[: 1 + seed % len(ADDRESSES)]))
            case chance if chance < 0.8:
                connection = model.enter(source.choice(ADDRESSES))
                if connection is not None:
                    admission.authenticated(connection)
                    del model.waiting[connection]
            case _ if model.addresses:
                connection = source.choice(list(model.addresses))
                admission.leave(connection)
                model.leave(connection)
        model.check()
    for connection in list(model.addresses):
        admission.leave(connection)
        admission.leave(connection)
    assert not admission.count
    assert not admission._counts
    assert not admission._unauthenticated


def newest_first(self: ConnectionAdmission[int], connection: int, address: str) -> Any:
    for connections in self._unauthenticated.values():
        last = next(reversed(connections))
        first = next(iter(connections))
        if first != last:
            connections[first] = connections.pop(first)
    return ENTER(self, connection, address)


def without_leaving(self: ConnectionAdmission[int], connection: int) -> None:
    self.authenticated(connection)
    self._addresses.pop(connection, None)


ENTER = ConnectionAdmission.enter
MUTANTS = {
    "another than the oldest goes": Mutant(
        strangers_and_clients, replaced(ConnectionAdmission, enter=newest_first)
    ),
    "who has logged in counts as a stranger": Mutant(
        strangers_and_clients,
        replaced(ConnectionAdmission, authenticated=lambda _self, _connection: None),
    ),
    "any address pays": Mutant(
        strangers_and_clients,
        replaced(
            ConnectionAdmission,
            _of_busiest_address=lambda self: next(iter(self._unauthenticated.values()), None),
        ),
    ),
    "who left is counted": Mutant(
        strangers_and_clients, replaced(ConnectionAdmission, leave=without_leaving)
    ),
}


@pytest.mark.parametrize("seed", range(8))
def test_strangers_never_keep_clients_out(seed: int) -> None:
    strangers_and_clients(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()


@pytest.mark.parametrize("name", weathers(MUTANTS))
def test_without_a_bug_there_is_no_harm(name: str) -> None:
    MUTANTS[name].run(MUTANTS[name].first)


def test_all_addresses_of_a_network_of_version_6_are_one() -> None:
    admission: ConnectionAdmission[int] = ConnectionAdmission(TOTAL, SETTINGS)
    for number in range(60):
        admission.enter(number, f"2001:db8:0:1::{number:x}%eth0")
    assert admission.dropped == {"address": 0, "unauthenticated": 30, "total": 0}
    assert admission._counts == {"2001:db8:0:1::/64": 30}
    admission.enter(100, "::ffff:10.0.0.1")
    admission.enter(101, "10.0.0.1")
    assert admission._counts["10.0.0.1"] == 2


def test_shares_are_generous_and_never_above_the_whole() -> None:
    shares = {
        total: (admission.address_max, admission.unauthenticated_max)
        for total in (0, 2, 64, 1_024, 10_000)
        for admission in [ConnectionAdmission[int](total)]
    }
    assert shares == {
        0: (0, 0),
        2: (2, 2),
        64: (48, BOUND_MIN),
        1_024: (768, 256),
        10_000: (7_500, 2_500),
    }


def test_what_was_dropped_is_shown_with_the_reason() -> None:
    metrics = Metrics()
    admission: ConnectionAdmission[int] = ConnectionAdmission(20)
    admission.count_in(metrics, "gateway")
    for number in range(20):
        admission.enter(number, f"10.0.0.{number}")
    text = metrics.render().decode()
    assert 'connections_dropped_total{listener="gateway",reason="unauthenticated"} 4.0' in text, (
        text
    )
    assert 'connections_unauthenticated{listener="gateway"} 16.0' in text


# The RPC server: stores, gateways, bookies, receivers and nodes have this one.


def test_connections_without_a_login_do_not_keep_clients_out() -> None:
    async def main() -> None:
        limits = ServerLimits(connections_max=24, handshake_timeout_ms=3_600_000)
        async with (
            AsyncExitStack() as stack,
            serving(Handlers().service, limits=limits) as (server, port),
        ):
            known = await stack.enter_async_context(await dial(port))
            strangers = [
                await stack.enter_async_context(raw_peer(port, authenticated=False))
                for _ in range(40)
            ]
            async with await dial(port) as late:
                assert await late.call(ECHO, b"late", 60_000) == b"late"
            assert await known.call(ECHO, b"known", 60_000) == b"known"
            frame = await strangers[0].frame()
            assert frame is not None
            error = decode_error(frame[4])
            assert isinstance(error, Overloaded)
            assert "connections.unauthenticated_percent" in error.message
            await until(lambda: server.connection_count <= 1 + BOUND_MIN)
            assert server.admission.dropped["unauthenticated"] >= 40 - BOUND_MIN

    run(main())


def test_one_address_does_not_take_all_there_are() -> None:
    async def main() -> None:
        limits = ServerLimits(
            connections_max=40, connections=ConnectionSettings(address_percent=50)
        )
        async with (
            AsyncExitStack() as stack,
            serving(Handlers().service, limits=limits) as (server, port),
        ):
            for _ in range(20):
                await stack.enter_async_context(await dial(port))
            with pytest.raises(Overloaded, match="address_percent"):
                await dial(port)
            assert server.admission.dropped == {"address": 1, "unauthenticated": 0, "total": 0}

    run(main())
