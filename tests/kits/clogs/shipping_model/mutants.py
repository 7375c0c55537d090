"""Bugs planted on purpose: each must be caught, or the oracle proves nothing."""

import heapq
from collections.abc import Iterable
from functools import partial

from raftwood.clogs.client.entries import Entry, Lane
from raftwood.clogs.client.shipping_rules import Send, ShippingRules
from tests.kits.clogs.shipping_model.world import run
from tests.kits.models import Mutant, replaced


def _failed_and_asks_anew(rules: ShippingRules, lane: Lane, attempt: int, *, now: float) -> None:
    if rules._is_current(lane, attempt):
        lane.place = ""
    _failed(rules, lane, attempt, now=now)


_failed = ShippingRules.failed


def _moved_and_stays(rules: ShippingRules, lane: Lane, attempt: int, *, now: float) -> None:
    _failed(rules, lane, attempt, now=now)


def _acked_and_counted_on(rules: ShippingRules, lane: Lane, entry: Entry, place: str) -> bool:
    under_way = dict(rules._in_flight)
    is_news = _acked(rules, lane, entry, place)
    if is_news:
        rules._in_flight = under_way
    return is_news


_acked = ShippingRules.acked


def _acked_if_in_time(rules: ShippingRules, lane: Lane, entry: Entry, place: str) -> bool:
    return lane.is_under_way and _acked(rules, lane, entry, place)


def _dropped_though_sent(rules: ShippingRules, entry: Entry) -> None:
    entry.was_sent = False
    _dropped(rules, entry)


_dropped = ShippingRules.dropped


def _offered_while_under_way(rules: ShippingRules, lane: Lane) -> None:
    if lane.queue and not (lane.held_at or lane.retry_at):
        rules._ready[lane] = None


def _all_stay(rules: ShippingRules, live: Iterable[str]) -> None:
    _servers_changed(rules, [*live, *rules._in_flight])


def _late_answers_count(rules: ShippingRules, live: Iterable[str]) -> None:
    attempts = {lane: lane.attempt for lane in rules._lanes.values()}
    _servers_changed(rules, live)
    for lane, attempt in attempts.items():
        lane.attempt = attempt - 1


_servers_changed = ShippingRules.servers_changed


def _try_at_once(rules: ShippingRules, lane: Lane, now: float) -> None:
    rules._turn += 1
    lane.failures += 1
    lane.retry_at = now
    heapq.heappush(rules._waiting, (now, rules._turn, lane))


def _never_try_again(rules: ShippingRules, lane: Lane, now: float) -> None:
    lane.retry_at = now + rules._limits.retry_delay_s(lane.name, 1)


def _always_as_short(rules: ShippingRules, lane: Lane, now: float) -> None:
    lane.failures = 0
    _try_later(rules, lane, now)


_try_later = ShippingRules._try_later


def _leave_without_a_word(rules: ShippingRules, lane: Lane) -> None:
    _leave(rules, lane)
    rules._freed.clear()


_leave = ShippingRules._leave


def _reset_but_held(_: ShippingRules, lane: Lane) -> None:
    lane.retry_at = 0.0
    lane.failures = 0


def _not_sent_is_sent(rules: ShippingRules, action: Send, *, now: float) -> None:
    _failed(rules, action.lane, action.attempt, now=now)


_run = partial(run, events=4_000)
MUTANTS = {
    "a batch is sent while another is under way": Mutant(
        _run, replaced(ShippingRules, _offer=_offered_while_under_way)
    ),
    "a batch that was sent is dropped": Mutant(
        _run, replaced(ShippingRules, dropped=_dropped_though_sent)
    ),
    "a batch that could not be sent counts as sent": Mutant(
        _run, replaced(ShippingRules, not_sent=_not_sent_is_sent)
    ),
    "a failed attempt is made again at once": Mutant(
        _run, replaced(ShippingRules, _try_later=_try_at_once)
    ),
    "a lane is stuck after a failure": Mutant(
        _run, replaced(ShippingRules, _try_later=_never_try_again)
    ),
    "a lane that is held stays so though its batch is acked": Mutant(
        _run, replaced(ShippingRules, _reset=_reset_but_held)
    ),
    "a late ack counts for nothing": Mutant(_run, replaced(ShippingRules, acked=_acked_if_in_time)),
    "a place changes while a batch is in doubt": Mutant(
        _run, replaced(ShippingRules, failed=_failed_and_asks_anew)
    ),
    "a place that takes no more is kept": Mutant(
        _run, replaced(ShippingRules, moved=_moved_and_stays)
    ),
    "a stale failure counts": Mutant(
        _run,
        replaced(ShippingRules, _is_current=staticmethod(lambda lane, _attempt: lane.is_under_way)),
    ),
    "an ack does not make room": Mutant(_run, replaced(ShippingRules, acked=_acked_and_counted_on)),
    "an attempt's number is used again": Mutant(
        _run, replaced(ShippingRules, servers_changed=_late_answers_count)
    ),
    "lanes stay under way at a server that left": Mutant(
        _run, replaced(ShippingRules, servers_changed=_all_stay)
    ),
    "nobody hears that there is room at a server": Mutant(
        _run, replaced(ShippingRules, _leave=_leave_without_a_word)
    ),
    "waits do not grow": Mutant(_run, replaced(ShippingRules, _try_later=_always_as_short)),
}
