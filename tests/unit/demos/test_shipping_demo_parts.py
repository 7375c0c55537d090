"""Parts of the demo's shipping: whose lines are whose, what is counted, and what is checked."""

from itertools import chain

import msgspec
import pytest

from raftwood.clogs.client.status import Counters, ServerCounters
from raftwood_demos.pipeline_check import FigureCheck
from raftwood_demos.shipping import (
    Killed,
    MadeLines,
    Shipped,
    ShippingPlan,
    added_up,
    shipping_checks,
    went_on,
)
from raftwood_demos.web_logs import WebFiles, file_name, file_names, share
from raftwood_demos.web_server import Given

PLAN = ShippingPlan(servers=3, lines=2_000, lines_per_minute=600, seed=5)
LINES = {server: list(PLAN.server_lines(server)) for server in (1, 2, 3)}


def files_of(lines: dict[int, list[str]]) -> WebFiles:
    files = WebFiles()
    for server, given in lines.items():
        for line in given:
            files.add(file_name(server, line), line)
    return files


def shipped() -> Shipped:
    killed = Killed(
        receiver="gateway-2",
        files=4,
        isolated_ms=800,
        elsewhere=4,
        elsewhere_ms=900,
        others_ms=100,
        away_s=3,
        taken_back_ms=200,
        acked_again=10,
    )
    return Shipped(killed=killed, files={}, receivers={}, acked=2_000, dropped=0, refused=0)


def checked(figures: Shipped, found: WebFiles) -> list[FigureCheck]:
    return shipping_checks(figures, lines=2_000, made=files_of(LINES), found=found)


def test_shares_of_several_orders_are_those_of_all_lines_together() -> None:
    for lines in range(12):
        shares = [share(lines, server, 3) for server in (1, 2, 3)]
        assert sum(shares) == lines
        assert max(shares) - min(shares) <= 1
        for more in range(5):
            assert all(
                share(lines + more, server, 3) >= share(lines, server, 3) for server in (1, 2, 3)
            )


def test_servers_have_visitors_of_their_own_and_all_lines_are_in_known_files() -> None:
    assert len(set(chain(*LINES.values()))) == 2_000
    names = [name for server in LINES for name in file_names(server)]
    assert list(files_of(LINES)) == sorted(names)


def test_all_checks_hold_where_every_line_is_there_once_and_in_order() -> None:
    assert all(each.held for each in checked(shipped(), files_of(LINES)))


def test_lines_that_come_in_between_from_other_files_change_nothing() -> None:
    mixed = WebFiles()
    for server in (3, 2, 1):
        for line in LINES[server]:
            mixed.add(file_name(server, line), line)
    assert all(each.held for each in checked(shipped(), mixed))


@pytest.mark.parametrize("fault", ["lost", "twice", "swapped", "elsewhere", "cut"])
def test_a_line_that_is_not_where_it_was_made_breaks_a_check(fault: str) -> None:
    lines = {server: list(given) for server, given in LINES.items()}
    place, other, *_ = (
        index for index, line in enumerate(lines[2]) if file_name(2, line) == "web-2/api.log"
    )
    if fault == "lost":
        del lines[2][place]
    elif fault == "twice":
        lines[2].insert(place, lines[2][place])
    elif fault == "swapped":
        lines[2][place], lines[2][other] = lines[2][other], lines[2][place]
    elif fault == "elsewhere":
        lines[3].append(lines[2].pop(place))
    else:
        lines[2][place] = lines[2][place][:-1]
    assert not all(each.held for each in checked(shipped(), files_of(lines)))


@pytest.mark.parametrize(
    "wrong",
    [{"acked": 1_999}, {"dropped": 1}, {"refused": 1}],
)
def test_a_figure_of_the_shippers_that_is_off_by_one_breaks_a_check(wrong: dict[str, int]) -> None:
    figures = msgspec.structs.replace(shipped(), **wrong)
    assert not all(each.held for each in checked(figures, files_of(LINES)))


def test_a_file_that_waited_for_the_killed_receiver_breaks_a_check() -> None:
    figures = shipped()
    killed = msgspec.structs.replace(figures.killed, elsewhere=3)
    figures = msgspec.structs.replace(figures, killed=killed)
    assert not all(each.held for each in checked(figures, files_of(LINES)))


def test_a_file_went_on_when_lines_given_after_the_kill_were_acked_before_the_return() -> None:
    ms = 1_000_000
    given = [
        Given("one", 5, 90 * ms, 110 * ms),  # given before
        Given("one", 5, 120 * ms, 400 * ms),
        Given("one", 5, 130 * ms, 390 * ms),
        Given("two", 5, 120 * ms, 200 * ms),
        Given("late", 5, 120 * ms, 900 * ms),
        Given("other", 5, 120 * ms, 600 * ms),
    ]
    files = ["one", "two", "late"]
    assert went_on(given, files, after_ns=100 * ms, until_ns=800 * ms) == (2, 290.0)
    assert went_on([], files, after_ns=100 * ms, until_ns=800 * ms) == (0, 0.0)


def test_counters_are_added_up_by_receiver() -> None:
    one = Counters(servers={"b": ServerCounters(sent=5, acked=4, retried=1)})
    two = Counters(servers={"b": ServerCounters(sent=2, acked=2), "a": ServerCounters(dropped=3)})
    assert added_up([one, two]) == {
        "a": ServerCounters(dropped=3),
        "b": ServerCounters(sent=7, acked=6, retried=1),
    }
    assert one.servers["b"].sent == 5


def test_what_is_known_of_all_lines_is_found_out_by_a_thread() -> None:
    with MadeLines(PLAN) as made:
        truth, files = made.known()
    assert truth.total.requests == 2_000
    assert len(files.same_as(files_of(LINES))) == 9


def test_a_demo_that_ends_early_does_not_wait_for_all_lines_to_be_made() -> None:
    with MadeLines(msgspec.structs.replace(PLAN, lines=50_000_000)) as made:
        made.begin()
    truth, _ = made.known()
    assert truth.total.requests < 50_000_000
