"""Bugs planted on purpose: each must be caught, or the oracle proves nothing."""

import heapq
from collections.abc import Iterable
from functools import partial

from raftwood.clogs.client.shipping_rules import FileLane, QueuedBatch, ShipBatch, ShippingRules
from raftwood.clogs.receiver import Ordering
from tests.kits.clogs.shipping_model.world import run
from tests.kits.models import Mutant, replaced


def _failed_and_asks_anew(
    rules: ShippingRules, lane: FileLane, entry: QueuedBatch | None, attempt: int, *, now: float
) -> None:
    if entry in lane.in_flight and attempt == lane.attempt:
        for each in lane.queue:
            each.place = ""
        lane.place = ""
    _failed(rules, lane, entry, attempt, now=now)


_failed = ShippingRules.failed


def _moved_and_stays(
    rules: ShippingRules, lane: FileLane, entry: QueuedBatch, attempt: int, *, now: float
) -> None:
    _failed(rules, lane, entry, attempt, now=now)


def _moved_alone(
    rules: ShippingRules, lane: FileLane, entry: QueuedBatch, attempt: int, *, now: float
) -> None:
    ended = entry.place
    _moved(rules, lane, entry, attempt, now=now)
    if ended and not entry.place:
        lane.place = ended


_moved = ShippingRules.moved


def _acked_and_counted_on(
    rules: ShippingRules, lane: FileLane, entry: QueuedBatch, place: str
) -> list[QueuedBatch]:
    under_way = dict(rules._in_flight)
    over = _acked(rules, lane, entry, place)
    if over:
        rules._in_flight = under_way
    return over


_acked = ShippingRules.acked


def _acked_if_in_time(
    rules: ShippingRules, lane: FileLane, entry: QueuedBatch, place: str
) -> list[QueuedBatch]:
    return _acked(rules, lane, entry, place) if lane.is_under_way else []


def _acked_and_all_go_there(
    rules: ShippingRules, lane: FileLane, entry: QueuedBatch, place: str
) -> list[QueuedBatch]:
    over = _acked(rules, lane, entry, place)
    if over:
        for each in lane.queue:
            each.place = place
    return over


def _acked_in_any_order(
    rules: ShippingRules, lane: FileLane, entry: QueuedBatch, place: str
) -> list[QueuedBatch]:
    if entry in lane.in_flight and lane.queue[0] is not entry:
        rules._take_back(lane, lane.in_flight[0])
        lane.queue.remove(entry)
        return [entry]
    return _acked(rules, lane, entry, place)


def _dropped_though_sent(rules: ShippingRules, entry: QueuedBatch) -> None:
    entry.was_sent = False
    _dropped(rules, entry)


_dropped = ShippingRules.dropped


def _offered_while_under_way(rules: ShippingRules, lane: FileLane) -> None:
    if lane.queue and not (lane.held_at or lane.retry_at):
        lane.is_asking = False
        rules._ready[lane] = None


def _follows_anywhere(rules: ShippingRules, lane: FileLane, entry: QueuedBatch) -> bool:
    place, entry.place = entry.place, lane.in_flight[-1].place
    may = _may_follow(rules, lane, entry)
    if not may:
        entry.place = place
    return may


_may_follow = ShippingRules._may_follow


def _told_more(rules: ShippingRules, server: str, window: int) -> None:
    rules._windows[server] = 2 * window + 1


def _refused_alone(
    rules: ShippingRules, lane: FileLane, entry: QueuedBatch, attempt: int
) -> list[QueuedBatch]:
    is_keepable, entry.is_keepable = entry.is_keepable, True
    over = _refused(rules, lane, entry, attempt)
    entry.is_keepable = is_keepable
    return over


_refused = ShippingRules.refused


def _always_behind(*_: object) -> bool:
    return True


def _all_stay(rules: ShippingRules, live: Iterable[str]) -> None:
    _servers_changed(rules, [*live, *rules._in_flight])


def _late_answers_count(rules: ShippingRules, live: Iterable[str]) -> None:
    attempts = {lane: lane.attempt for lane in rules._lanes.values()}
    _servers_changed(rules, live)
    for lane, attempt in attempts.items():
        lane.attempt = attempt - 1


_servers_changed = ShippingRules.servers_changed


def _try_at_once(rules: ShippingRules, lane: FileLane, now: float) -> None:
    rules._turn += 1
    lane.failures += 1
    lane.retry_at = now
    heapq.heappush(rules._waiting, (now, rules._turn, lane))


def _never_try_again(rules: ShippingRules, lane: FileLane, now: float) -> None:
    lane.retry_at = now + rules._limits.retry.delay_ms(0, 0) / 1000


def _always_as_short(rules: ShippingRules, lane: FileLane, now: float) -> None:
    lane.failures = 0
    _try_later(rules, lane, now)


_try_later = ShippingRules._try_later


def _leave_without_a_word(rules: ShippingRules, lane: FileLane) -> None:
    _leave(rules, lane)
    rules._freed.clear()


_leave = ShippingRules._leave


def _reset_but_held(_: ShippingRules, lane: FileLane) -> None:
    lane.retry_at = 0.0
    lane.failures = 0


def _not_sent_is_sent(rules: ShippingRules, action: ShipBatch, *, now: float) -> None:
    _failed(rules, action.lane, action.entry, action.attempt, now=now)


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
        replaced(
            ShippingRules,
            _is_in_flight=staticmethod(lambda lane, entry, _attempt: entry in lane.in_flight),
        ),
    ),
    "acks count in any order": Mutant(_run, replaced(ShippingRules, acked=_acked_in_any_order)),
    "a batch in doubt goes where its file goes by now": Mutant(
        _run, replaced(ShippingRules, acked=_acked_and_all_go_there)
    ),
    "a batch follows to a place that it was not sent to": Mutant(
        _run, replaced(ShippingRules, _may_follow=_follows_anywhere)
    ),
    "a receiver stores what follows before what is in front of it": Mutant(
        _run, replaced(Ordering, is_behind=_always_behind), harm="is stored behind"
    ),
    "more are under way than a server keeps in order": Mutant(
        _run, replaced(ShippingRules, told=_told_more)
    ),
    "the file goes on at a place that has ended": Mutant(
        _run, replaced(ShippingRules, moved=_moved_alone)
    ),
    "what is behind a refused batch goes on without it": Mutant(
        _run, replaced(ShippingRules, refused=_refused_alone)
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
