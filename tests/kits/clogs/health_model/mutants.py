"""Bugs planted on purpose: each must be caught, or the oracle proves nothing."""

from functools import partial

from raftwood.clogs.configuration import HaRules, RingConfiguration
from raftwood.clogs.health import Action, Health, Isolate, Recover, ServerCheck
from tests.kits.clogs.health_model.world import run
from tests.kits.models import Mutant, replaced


def _take_pong_without_reset(server: ServerCheck, pong_id: int, now: float) -> bool:
    before = server.invalid_checks
    is_valid = _take_pong(server, pong_id, now)
    server.invalid_checks = before if server.isolated_since is None else server.invalid_checks
    return is_valid


def _take_old_pong(server: ServerCheck, pong_id: int, now: float) -> bool:
    is_old = 0 < server.ping_id + 1 - pong_id <= 20
    return _take_pong(server, server.ping_id + 1 if is_old else pong_id, now)


def _take_pong_twice(server: ServerCheck, pong_id: int, now: float) -> bool:
    server.is_awaiting = server.is_awaiting or pong_id == server.ping_id + 1
    return _take_pong(server, pong_id, now)


_take_pong = ServerCheck.take_pong


def _check_but_the_isolated(health: Health, server: ServerCheck, now: float) -> list[Action]:
    if server.isolated_since is None:
        return _checked(health, server, now)
    server.next_check = now + health._gap_s
    return []


def _check_each_missed(health: Health, server: ServerCheck, now: float) -> list[Action]:
    if server.is_awaiting:
        server.invalid_checks += int((now - server.next_check) / health._gap_s)
    return _checked(health, server, now)


def _check_at_once(health: Health, server: ServerCheck, now: float) -> list[Action]:
    server.is_put_off = True
    return _checked(health, server, now)


_checked = Health._checked


def _configure_anew(health: Health, configuration: RingConfiguration, now: float) -> list[Action]:
    health._servers = {}
    return _configure(health, configuration, now)


_configure = Health.configure


def _live_alone(health: Health) -> tuple[str, ...]:
    return tuple(each.name for each in health._servers.values() if each.isolated_since is None)


def _pong_in_time_recovers(health: Health, name: str, pong_id: int, now: float) -> list[Action]:
    """As in the seed: what is found when the check is due is looked at, and forgotten."""
    server = health._servers.get(name)
    if server is None or now < server.next_check:
        return _pong(health, name, pong_id, now)
    return []


_pong = Health.pong


def _work_without_recovery(health: Health, server: ServerCheck, now: float) -> list[Action]:
    return [each for each in _work(health, server, now) if not isinstance(each, Recover)]


_work = Health._work


def _isolate_as_the_first_time(server: ServerCheck, rules: HaRules, now: float) -> None:
    server.repeats = 0
    _isolate(server, rules, now)


_isolate = ServerCheck.isolate


def _judge_the_lost(health: Health, server: ServerCheck, now: float) -> list[Action]:
    server.is_awaiting = server.is_awaiting or server.is_lost
    return _judged(health, server, now)


_judged = Health._judged


def _lost_is_isolated(health: Health, name: str, now: float) -> list[Action]:
    done = _connection_lost(health, name, now)
    server = health._servers.get(name)
    if server is None or server.isolated_since is not None:
        return done
    server.isolate(health._rules, now)
    health._isolated_count += 1
    health._live = None
    return [*done, Isolate(name)]


_connection_lost = Health.connection_lost


def _added_from_the_first_id(health: Health, name: str, phase: float, now: float) -> ServerCheck:
    server = _added(health, name, phase, now)
    server.ping_id = 0
    return server


_added = Health._added


_run = partial(run, events=4_000)
MUTANTS = {
    "a connection that is lost isolates": Mutant(
        _run, replaced(Health, connection_lost=_lost_is_isolated)
    ),
    "a connection that is lost counts as no pong": Mutant(
        _run, replaced(Health, _judged=_judge_the_lost)
    ),
    "a doubled pong is taken again": Mutant(
        _run,
        replaced(ServerCheck, take_pong=_take_pong_twice),
        first=14,
    ),
    "a pause counts as many checks": Mutant(_run, replaced(Health, _checked=_check_each_missed)),
    "a pause leaves pongs no time": Mutant(_run, replaced(Health, _checked=_check_at_once)),
    "a pong of an old ping is accepted": Mutant(
        _run, replaced(ServerCheck, take_pong=_take_old_pong)
    ),
    "a pong that is found when the check is due does not recover": Mutant(
        _run,
        replaced(Health, pong=_pong_in_time_recovers),
        first=10,
    ),
    "a reload forgets state": Mutant(_run, replaced(Health, configure=_configure_anew)),
    "a reload leaves too many isolated": Mutant(
        _run, replaced(Health, _released=lambda *_: []), first=20
    ),
    "a server that comes back has its old ids": Mutant(
        _run, replaced(Health, _added=_added_from_the_first_id)
    ),
    "all isolated drops the ring": Mutant(_run, replaced(Health, live=_live_alone), first=9),
    "an isolated server is never pinged": Mutant(
        _run, replaced(Health, _checked=_check_but_the_isolated)
    ),
    "the counter is not reset": Mutant(
        _run, replaced(ServerCheck, take_pong=_take_pong_without_reset)
    ),
    "the limit of isolations is ignored": Mutant(
        _run, replaced(Health, _isolated_max=lambda health: len(health._servers))
    ),
    "the tick does not tell that a server recovered": Mutant(
        _run, replaced(Health, _work=_work_without_recovery)
    ),
    "the time in isolation does not fade": Mutant(
        _run, replaced(ServerCheck, faded_repeats=lambda server, _: server.repeats)
    ),
    "the time in isolation does not grow": Mutant(
        _run, replaced(ServerCheck, isolate=_isolate_as_the_first_time)
    ),
    "the time in isolation is not waited for": Mutant(
        _run,
        replaced(
            ServerCheck,
            may_recover=lambda server, *_: server.isolated_since is not None and server.is_well,
        ),
    ),
}
