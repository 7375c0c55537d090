"""Every dashboard is whole, and asks for nothing but metrics that there are."""

import functools
import json
import re
from collections.abc import Set as AbstractSet
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock
from urllib.request import urlopen

import pytest

from raftwood.base.metrics import PREFIX, Metrics
from raftwood.logservice.server.metrics import ALARM_KINDS
from raftwood.raft.node_host import register_metrics
from raftwood.raft.repair import Repairs
from raftwood.zeppelin.node.admin import show_node
from tests.kits.logservice.log_cluster import LogCluster, run_log_cluster
from tests.kits.server.gateway_thread import GatewayThread

DASHBOARDS = sorted((Path(__file__).parents[2] / "dashboards").glob("*.json"))
ALERTS = sorted((Path(__file__).parents[2] / "dashboards").glob("*-alerts.yml"))
HISTOGRAMS = {
    "logservice_append_seconds",
    "logservice_read_seconds",
    "gateway_answer_seconds",
    "kv_parked_seconds",
}
_NO_NAMES = re.compile(
    r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)'
)
_NAME = re.compile(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()")
_WORDS = {"and", "or", "unless", "bool", "inf", "offset"}

on_every_dashboard = pytest.mark.parametrize(
    "file", [pytest.param(file, id=file.stem) for file in DASHBOARDS]
)


def raft_metrics() -> set[str]:
    metrics = Mock(spec=Metrics)
    register_metrics(metrics, {}, Mock(), Mock(), Mock(), Mock(), Mock())
    Repairs.register_metrics(Mock(), metrics)
    return {call.args[0] for call in metrics.mock_calls}


def zeppelin_metrics() -> set[str]:
    metrics = Mock(spec=Metrics)
    show_node(metrics, Mock(), Mock())
    return {call.args[0] for call in metrics.mock_calls}


@functools.cache
def logservice_metrics() -> frozenset[str]:
    """What a log store registers."""
    text = b""

    async def scenario(cluster: LogCluster) -> None:
        nonlocal text
        cluster.start(1)
        await cluster.until(lambda: 1 in cluster.stores)
        text = cluster.metrics[1].render()

    run_log_cluster(scenario, first=(1,))
    return names_of(text)


@functools.cache
def loghub_metrics() -> frozenset[str]:
    """What a gateway registers, once it has answered something over HTTP."""
    with TemporaryDirectory() as folder, GatewayThread(Path(folder), is_whole=True) as gateway:
        with urlopen(f"http://{gateway.http_address}/openapi.json") as answer:
            answer.read()
        return names_of(gateway.metrics.render())


def names_of(text: bytes) -> frozenset[str]:
    lines = text.decode().splitlines()
    names = (line.split()[2] for line in lines if line.startswith("# TYPE"))
    return frozenset(name.removeprefix(PREFIX) for name in names)


def all_metrics() -> set[str]:
    return {*logservice_metrics(), *raft_metrics(), *loghub_metrics(), *zeppelin_metrics()}


def series_of(names: AbstractSet[str]) -> set[str]:
    """As Prometheus has them: a histogram is three."""
    suffixed = {
        f"{name}_{suffix}" for name in HISTOGRAMS & names for suffix in ("bucket", "sum", "count")
    }
    return {PREFIX + name for name in (names - HISTOGRAMS) | suffixed}


def names_in(expression: str) -> set[str]:
    return set(_NAME.findall(_NO_NAMES.sub(" ", expression))) - _WORDS


def board_of(file: Path) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(file.read_text())
    return board


def panels_of(board: dict[str, Any]) -> list[dict[str, Any]]:
    """With those that a closed row holds."""
    return [each for panel in board["panels"] for each in (panel, *panel.get("panels", ()))]


def expressions_of(board: dict[str, Any]) -> list[str]:
    panels = [target["expr"] for panel in panels_of(board) for target in panel.get("targets", ())]
    # label_values(metric{...}, label): the last word is no metric.
    variables = [
        variable["definition"].removeprefix("label_values(").rpartition(",")[0]
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    return panels + variables


def test_there_is_a_dashboard() -> None:
    assert DASHBOARDS


@on_every_dashboard
def test_every_expression_names_metrics_that_there_are(file: Path) -> None:
    known = series_of(all_metrics())
    for expression in expressions_of(board_of(file)):
        names = names_in(expression)
        assert names, expression
        assert names <= known, f"{expression} names {sorted(names - known)}"


def test_every_metric_is_shown() -> None:
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for file in DASHBOARDS
        for expression in expressions_of(board_of(file))
        for name in names_in(expression)
    }
    assert {PREFIX + name for name in all_metrics()} - shown == set()


def alert_rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = []
    for file in ALERTS:
        # The first line is a comment, which JSON has not.
        rules += json.loads(file.read_text().partition("\n")[2])["groups"][0]["rules"]
    return rules


def test_every_alert_names_metrics_that_there_are_and_says_what_to_do() -> None:
    known = series_of(all_metrics())
    rules = alert_rules()
    assert len({rule["alert"] for rule in rules}) == len(rules) > 0
    for rule in rules:
        names = names_in(rule["expr"])
        assert names, rule
        assert names <= known, f"{rule['alert']} names {sorted(names - known)}"
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")


def test_there_is_an_alert_for_each_kind_of_alarm_of_a_store() -> None:
    asked = " ".join(rule["expr"] for rule in alert_rules())
    assert [kind for kind in ALARM_KINDS if f'kind="{kind}"' not in asked] == []


@on_every_dashboard
def test_panels_have_ids_of_their_own_and_do_not_overlap(file: Path) -> None:
    board = board_of(file)
    ids = [panel["id"] for panel in panels_of(board)]
    assert len(set(ids)) == len(ids)
    taken = [
        (position["x"] + right, position["y"] + down)
        for panel in board["panels"]
        for position in [panel["gridPos"]]
        for right in range(position["w"])
        for down in range(position["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


@on_every_dashboard
def test_the_source_of_the_data_is_chosen_by_a_variable(file: Path) -> None:
    board = board_of(file)
    assert board["uid"]
    assert board["schemaVersion"] >= 41
    assert "datasource" in {each["name"] for each in board["templating"]["list"]}
    asked = [
        part["datasource"]
        for panel in panels_of(board)
        for part in (panel, *panel.get("targets", ()))
        if panel["type"] != "row"
    ]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in asked)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (le) (rate(a_bucket{b="c"}[5m]))', {"a_bucket"}),
        ("histogram_quantile(0.99, sum(a) by (b)) / on (c) d > bool 1", {"a", "d"}),
        ('max(a{b="up"}) == 1 or vector(0)', {"a"}),
    ],
)
def test_names_are_found_in_an_expression(expression: str, names: set[str]) -> None:
    assert names_in(expression) == names
