"""`raftwood status`: what its rules make of a planted cluster, and of parts that are silent."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from raftwood.base.errors import InvalidConfiguration, Unauthenticated, Unavailable
from raftwood.cli import status
from raftwood.cli.addresses import BOOKIES, CLOGS, LOG_SERVICE, LOGHUB, ZEPPELIN, AddressCheck
from raftwood.cli.command_line import run as raftwood
from raftwood.cli.kv_overview import Overview
from raftwood.cli.status import (
    HubFigures,
    Lag,
    PartReport,
    ask_part,
    bookies_report,
    left_out,
    log_service_report,
    report,
    servers_report,
    show,
    zeppelin_report,
)
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.logservice.hakeeper.commands import ClusterView, KeeperShardView, StoreView
from raftwood.logservice.hakeeper.messages import Alarm, AlarmKind
from raftwood.logservice.hakeeper.state import ClusterPhase
from raftwood.zeppelin.model import Topology

STORES = tuple(
    StoreView(
        store=number,
        address=f"h:{number}",
        failure_domain="",
        version="0.2.0",
        is_live=True,
        is_draining=False,
        silent_ticks=0,
        replicas=2,
        leaders=1,
        disk_bytes=100,
        disk_free_bytes=50,
    )
    for number in (1, 2, 3)
)
SHARDS = tuple(
    KeeperShardView(
        shard=number,
        name=f"log-{number}",
        wanted_voters=3,
        wanted_learners=0,
        voters=(1, 2, 3),
        learners=(),
        addresses={},
        leader=1,
        term=1,
        epoch=1,
        lagging={},
    )
    for number in (7, 8)
)
VIEW = ClusterView(
    phase=ClusterPhase.RUNNING,
    reason="",
    tick=100,
    term=1,
    stores=STORES,
    shards=SHARDS,
    services=(),
    tn_shards=(),
    alarms=(),
    orders=(),
    failures=(),
)


def texts(found: PartReport) -> list[str]:
    return [each.text for each in found.problems]


def test_nothing_is_wrong_with_a_cluster_that_runs() -> None:
    found = log_service_report(VIEW)
    assert (found.state, found.problems) == ("ok", ())
    assert found.text == "3 of 3 stores up, HAKeeper is running, 2 of 2 shards with a leader"


def test_the_worst_alarm_comes_first_and_each_has_a_remedy() -> None:
    alarms = (
        Alarm(AlarmKind.TOO_FEW_VOTERS, "shard 8 has 2 voters, and wants 3", 8),
        Alarm(AlarmKind.STORE_DOWN, "store 3 has been silent for 20 ticks", store=3),
        Alarm(AlarmKind.LOST_QUORUM, "shard 7 has 1 of its voters", 7),
    )
    stores = (*STORES[:2], replace(STORES[2], is_live=False))
    shards = tuple(replace(each, leader=0) for each in SHARDS)
    found = log_service_report(replace(VIEW, stores=stores, shards=shards, alarms=alarms))
    assert found.state == "problem"
    assert texts(found)[:3] == [alarms[2].text, alarms[1].text, alarms[0].text]
    assert all(each.remedy for each in found.problems)
    assert "raftwood cluster forget 3" in found.problems[1].remedy
    assert found.text.startswith("2 of 3 stores up")
    assert found.text.endswith("0 of 2 shards with a leader")


def test_every_kind_of_alarm_has_a_remedy_with_its_names_filled_in() -> None:
    for kind in AlarmKind:
        found = log_service_report(replace(VIEW, alarms=(Alarm(kind, "text", 7, 3),)))
        assert found.problems[0].remedy
        assert "{" not in found.problems[0].remedy


def test_a_shard_without_leader_is_told_before_hakeeper_raises_an_alarm() -> None:
    shards = (SHARDS[0], replace(SHARDS[1], leader=0))
    found = log_service_report(replace(VIEW, shards=shards))
    assert texts(found) == ["shard 8 has no leader"]
    assert "raftwood raft status --group 8" in found.problems[0].remedy


def test_a_cluster_that_does_not_run_says_so_once() -> None:
    alarm = Alarm(AlarmKind.BOOTSTRAP_FAILED, "no store took shard 7")
    view = replace(VIEW, phase=ClusterPhase.BOOTSTRAP_FAILED, reason=alarm.text, alarms=(alarm,))
    assert texts(log_service_report(view)) == [
        "the cluster is bootstrap-failed: no store took shard 7"
    ]


def test_gateways_and_receivers_that_are_silent_or_refuse_the_key_are_problems() -> None:
    servers = [
        AddressCheck(LOGHUB, "h:1", "key"),
        AddressCheck(LOGHUB, "h:2", "key", "refused", is_refused=True),
        AddressCheck(LOGHUB, "h:3", "key", "no answer"),
    ]
    lags = (Lag("shop/a", 0, "slow", 90.0), Lag("shop/b", 1, "slower", 91.4))
    found = servers_report(LOGHUB, servers, HubFigures(2, 3, lags))
    assert texts(found) == [
        "gateway h:2 refuses the secret of key: refused",
        "gateway h:3 does not answer: no answer",
    ]
    assert found.text == (
        "1 of 3 gateways up, 2 projects, 3 logstores; furthest behind is slower of shop/b, by 91 s"
    )
    fine = servers_report(CLOGS, [AddressCheck(CLOGS, "h:1", "key")])
    assert (fine.state, fine.text) == ("ok", "1 of 1 receiver up")
    for lag, text in ((None, "not counted"), ((), "no reader behind")):
        assert text in servers_report(LOGHUB, servers[:1], HubFigures(1, 1, lag)).text


@pytest.mark.parametrize(
    ("states", "ledgers", "expected"),
    [
        ({"a": "running", "b": "running"}, {}, []),
        ({"a": "running", "b": "away"}, {"b": 2}, ["b is away, and 2 ledgers count on it"]),
        ({"a": "running", "b": "away"}, {"a": 2}, []),  # it was replaced everywhere
        ({"a": "began anew"}, {"a": 1}, ["a began anew, and 1 ledgers count on it"]),
        ({"a": "read-only"}, {}, ["a takes no new entries"]),
    ],
)
def test_bookies_that_ledgers_lack_are_problems(
    states: dict[str, str], ledgers: dict[str, int], expected: list[str]
) -> None:
    def by_id(given: Mapping[str, Any]) -> dict[BookieId, Any]:
        return {BookieId(name): value for name, value in given.items()}

    found = bookies_report(by_id(states), by_id(ledgers))
    assert texts(found) == [f"bookie {each}" for each in expected]


def test_parts_that_a_cluster_need_not_have_are_left_out() -> None:
    assert bookies_report({}, {}).state == "left out"
    overview = Overview(Topology(), {})
    assert zeppelin_report(overview, is_named=False).state == "left out"
    named = zeppelin_report(overview, is_named=True)
    assert "there are no nodes" in texts(named)[0]


def test_a_silent_part_is_a_problem_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "PART_S", 0.01)

    async def never() -> PartReport:
        await asyncio.Event().wait()
        raise AssertionError

    found = asyncio.run(ask_part(BOOKIES, never))
    assert found.state == "problem"
    assert "no answer within" in texts(found)[0]


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (InvalidConfiguration("secrets.operators is not set"), "left out", "secrets.operators"),
        (Unavailable("no store answers"), "problem", "does not answer"),
        (Unauthenticated("not accepted"), "problem", "refuses these settings"),
    ],
)
def test_an_error_is_a_note_or_a_problem_of_its_part(
    error: Exception, state: str, text: str
) -> None:
    async def failing() -> PartReport:
        raise error

    found = asyncio.run(ask_part(LOG_SERVICE, failing))
    assert found.state == state
    assert text in found.text
    assert all(each.remedy for each in found.problems)


def test_what_is_wrong_is_printed_first_and_no_line_is_wider_than_80(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reports = [
        report(LOG_SERVICE, "fine " * 30, []),
        report(ZEPPELIN, "1 of 2 nodes up", [("node n2 is down " * 8, "start it " * 12)]),
        left_out(CLOGS, "the settings do not name it"),
    ]
    show(reports, "text")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("problem  Zeppelin: node n2 is down")
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("clogs")] == [
        "clogs        left out  the settings do not name it"
    ]


def test_without_a_cluster_the_command_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTWOOD_CONTEXT", "")
    assert raftwood(["status"]) == 2
    assert "raftwood standalone" in capsys.readouterr().err
