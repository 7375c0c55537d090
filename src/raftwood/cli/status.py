"""`raftwood status`: all parts of a cluster at a glance, what is wrong first.

The parts that the settings name are asked at the same time, each with a deadline, so that one that
does not answer hides no other. The functions `…_report` turn the answers into a `PartReport`; they
do no I/O.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import msgspec
from cyclopts import App, Parameter

from raftwood.base.configuration import Configuration
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InvalidConfiguration,
    InvalidInput,
    NotFound,
    RaftwoodError,
    Unauthenticated,
)
from raftwood.cli.addresses import (
    BOOKIES,
    CLOGS,
    LOG_SERVICE,
    LOGHUB,
    ZEPPELIN,
    AddressCheck,
    gateway_addresses,
    is_named,
    reached,
    receiver_addresses,
    store_addresses,
)
from raftwood.cli.bookie import WHOLE, bookie_states, ledger_counts
from raftwood.cli.kv_overview import Overview, overview_of
from raftwood.cli.options import DEFAULTS, Source
from raftwood.cli.output import Format, size_text, write_json, write_line, write_wrapped
from raftwood.clogs.configuration_store import ConfigurationStore
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.consumer.loghub_source import LogHubSource
from raftwood.logservice.hakeeper.commands import ClusterView
from raftwood.logservice.hakeeper.messages import Alarm, AlarmKind
from raftwood.logservice.hakeeper.state import ClusterPhase
from raftwood.server.clients import (
    hub_access,
    loghub_client,
    shipper_settings,
)
from raftwood.server.cluster_client import connected_keeper, connected_metastore, connected_zeppelin
from raftwood.server.event_loop import run
from raftwood.server.settings import Settings

PART_S: Final = 5.0
LAG_S: Final = 1.5
"""What is counted of lag in this time is shown."""
LOGSTORES_MAX: Final = 100
_POLL_S: Final = 0.5


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong, and what to do about it."""

    part: str
    text: str
    remedy: str


class PartReport(msgspec.Struct, frozen=True):
    """One part of the cluster."""

    part: str
    state: Literal["ok", "problem", "left out"]
    text: str
    problems: tuple[Problem, ...] = ()


class Lag(msgspec.Struct, frozen=True):
    """How far the slowest registered reader of a shard is behind."""

    stream: str
    shard: int
    reader: str
    seconds: float


class HubFigures(msgspec.Struct, frozen=True):
    """What LogHub has, as one of its gateways says."""

    projects: int
    logstores: int
    lags: tuple[Lag, ...] | None
    """None where it took too long to count."""


def left_out(part: str, reason: str) -> PartReport:
    return PartReport(part, "left out", reason)


def report(part: str, text: str, problems: Sequence[tuple[str, str]]) -> PartReport:
    """A part that has answered; `problems` are texts and remedies, the worst first."""
    found = tuple(Problem(part, *each) for each in problems)
    return PartReport(part, "problem" if found else "ok", text, found)


_REFUSED: Final = "`raftwood doctor` tries each address with each secret, and says what to do"

# Log service

_REMEDIES: Final = {
    AlarmKind.LOST_QUORUM: "start the stores of this shard that are down",
    AlarmKind.LEADERLESS: "`raftwood raft status --group {shard}` shows its replicas: start the "
    "stores that are down",
    AlarmKind.BOOTSTRAP_FAILED: "start the stores that are missing: the cluster runs once all its "
    "first shards have begun",
    AlarmKind.STORE_DOWN: "start it; if it is gone for good, `raftwood cluster forget {store}` "
    "once HAKeeper has replaced its replicas",
    AlarmKind.TOO_FEW_STORES: "start another store, or end a drain by `raftwood cluster drain "
    "STORE --undo`",
    AlarmKind.TOO_FEW_VOTERS: "HAKeeper adds one as soon as a store is free; `raftwood cluster "
    "status` shows its orders",
    AlarmKind.STORE: "`raftwood cluster status` shows the store's disk and replicas",
}
"""By the kind of alarm, the worst first."""
_NOT_RUNNING: Final = (
    "start all stores of cluster.members; `raftwood cluster status --wait-seconds 60` waits until "
    "it runs"
)
_REMEDY: Final = "`raftwood raft status --group {shard}` shows its replicas"
_RANKS: Final = {kind: rank for rank, kind in enumerate(_REMEDIES)}


def log_service_report(view: ClusterView) -> PartReport:
    """HAKeeper's phase and alarms, and shards without a leader."""
    is_running = view.phase is ClusterPhase.RUNNING
    problems: list[tuple[str, str]] = []
    if not is_running:
        text = f"the cluster is {view.phase}{f': {view.reason}' if view.reason else ''}"
        problems.append((text, _NOT_RUNNING))
    alarms = sorted(view.alarms, key=lambda each: _RANKS.get(each.kind, len(_RANKS)))
    problems += [
        (alarm.text, _remedy(alarm))
        for alarm in alarms
        if is_running or alarm.kind is not AlarmKind.BOOTSTRAP_FAILED
    ]
    leaderless = [each.shard for each in view.shards if not each.leader]
    alarmed = {each.shard for each in view.alarms}
    problems += [
        (f"shard {shard} has no leader", _REMEDIES[AlarmKind.LEADERLESS].format(shard=shard))
        for shard in leaderless
        if shard not in alarmed
    ]
    up = sum(each.is_live for each in view.stores)
    text = (
        f"{up} of {count_text(len(view.stores), 'store')} up, HAKeeper is {view.phase}, "
        f"{len(view.shards) - len(leaderless)} of {count_text(len(view.shards), 'shard')} "
        "with a leader"
    )
    return report(LOG_SERVICE, text, problems)


def _remedy(alarm: Alarm) -> str:
    return _REMEDIES.get(alarm.kind, _REMEDY).format(shard=alarm.shard, store=alarm.store)


# Servers that are asked one by one

_SERVERS: Final = {LOG_SERVICE: "store", LOGHUB: "gateway", CLOGS: "receiver"}
_SETTINGS: Final = {
    LOG_SERVICE: "cluster.members",
    LOGHUB: "loghub_client.gateways",
    CLOGS: "the ring",
}


def servers_report(
    part: str, servers: Sequence[AddressCheck], figures: HubFigures | None = None
) -> PartReport:
    """Gateways, receivers, or stores without a log service: which of them answer.

    `figures` are what a gateway says there is.
    """
    kind = _SERVERS[part]
    problems = [
        (
            f"{kind} {each.address} refuses the secret of {each.role}: {each.error}",
            _REFUSED,
        )
        if each.is_refused
        else (
            f"{kind} {each.address} does not answer: {each.error}",
            f"start it, or take it out of {_SETTINGS[part]}",
        )
        for each in servers
        if each.error
    ]
    answer = sum(not each.error for each in servers)
    text = f"{answer} of {count_text(len(servers), kind)} up"
    if figures is not None:
        projects = count_text(figures.projects, "project")
        logstores = count_text(figures.logstores, "logstore")
        text += f", {projects}, {logstores}{_lag_text(figures.lags)}"
    return report(part, text, problems)


def _lag_text(lags: Sequence[Lag] | None) -> str:
    if lags is None:
        return ", lag not counted in time"
    if not lags:
        return ", no reader behind"
    worst = max(lags, key=lambda each: each.seconds)
    return f"; furthest behind is {worst.reader} of {worst.stream}, by {worst.seconds:.0f} s"


# Bookies

_BOOKIE_PROBLEMS: Final = {
    "away": (
        "bookie {bookie} is away, and {ledgers} ledgers count on it",
        "start it; if it is gone for good, `raftwood bookie repair {bookie}`",
    ),
    "began anew": (
        "bookie {bookie} began anew, and {ledgers} ledgers count on it",
        "`raftwood bookie repair {bookie}` copies its entries back",
    ),
    "read-only": (
        "bookie {bookie} takes no new entries",
        "free disk space on its machine",
    ),
}


def bookies_report(states: Mapping[BookieId, str], ledgers: Mapping[BookieId, int]) -> PartReport:
    """Bookies that ledgers lack; one that no ledger counts on may be away."""
    if not states:
        return left_out(BOOKIES, "none has ever run")
    problems = []
    for bookie, state in states.items():
        if state in _BOOKIE_PROBLEMS and (state in WHOLE or ledgers.get(bookie)):
            text, remedy = _BOOKIE_PROBLEMS[state]
            names = {"bookie": bookie, "ledgers": ledgers.get(bookie, 0)}
            problems.append((text.format(**names), remedy.format(**names)))
    counts = Counter(states.values())
    text = ", ".join(f"{count} {state}" for state, count in sorted(counts.items(), reverse=True))
    return report(BOOKIES, text, problems)


# Zeppelin


def zeppelin_report(overview: Overview, *, is_named: bool) -> PartReport:
    """Nodes, tables, masters and lag; a cluster that has no nodes need not have any."""
    tables, nodes = overview.tables(), overview.nodes()
    if not nodes and not tables and not is_named:
        return left_out(ZEPPELIN, "the cluster has no nodes")
    up = sum(overview.is_up(each["node"]) for each in nodes)
    partitions = sum(each["partitions"] for each in tables)
    masters = sum(each["masters"] for each in tables)
    lag_bytes = max((each["lag_bytes"] or 0 for each in tables), default=0)
    text = (
        f"{up} of {count_text(len(nodes), 'node')} up, {count_text(len(tables), 'table')}, "
        f"{masters} of {count_text(partitions, 'partition')} with a master, "
        f"worst lag {size_text(lag_bytes)}"
    )
    remedy = "`raftwood kv status` shows tables and nodes"
    return report(ZEPPELIN, text, [(each, remedy) for each in overview.problems()])


def count_text(number: int, noun: str) -> str:
    """As people write it: 1 store, 2 stores."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# Asking


async def cluster_view(environment: Environment, settings: Settings) -> ClusterView:
    """All that HAKeeper knows."""
    async with connected_keeper(environment, settings, None) as keeper:
        return await keeper.describe()


class _Cluster:
    """Asks each part; a method returns a report, or raises why there is none."""

    def __init__(self, environment: Environment, configuration: Configuration[Settings]) -> None:
        self._environment = environment
        self._configuration = configuration
        self._settings = configuration.settings

    def parts(self) -> dict[str, Callable[[], Awaitable[PartReport]]]:
        return {
            LOG_SERVICE: self._log_service,
            LOGHUB: self._loghub,
            BOOKIES: self._bookies,
            ZEPPELIN: self._zeppelin,
            CLOGS: self._clogs,
        }

    def _needs(self, part: str) -> None:
        if not is_named(self._configuration, part):
            raise InvalidConfiguration("the settings do not name it")

    async def _log_service(self) -> PartReport:
        self._needs(LOG_SERVICE)
        try:
            return log_service_report(await cluster_view(self._environment, self._settings))
        except InvalidConfiguration:
            raise
        except InvalidInput:  # stores of `raftwood serve`
            stores = store_addresses(self._environment, self._settings, roles=("operator",))
            return servers_report(LOG_SERVICE, await reached([*stores]))

    async def _loghub(self) -> PartReport:
        self._needs(LOGHUB)
        servers = await reached([*gateway_addresses(self._environment, self._settings)])
        alive = [each.address for each in servers if not each.error]
        if not alive:
            return servers_report(LOGHUB, servers)
        access = hub_access(self._settings, gateways=",".join(alive))
        async with await loghub_client(self._environment, access) as client:
            return servers_report(LOGHUB, servers, await _hub_figures(client))

    async def _bookies(self) -> PartReport:
        self._needs(LOG_SERVICE)
        async with connected_metastore(self._environment, self._settings, None) as store:
            states = await bookie_states(store)
            ledgers: Counter[BookieId] = Counter()
            if any(state not in WHOLE for state in states.values()):
                ledgers = await ledger_counts(self._environment, store)
        return bookies_report(states, ledgers)

    async def _zeppelin(self) -> PartReport:
        self._needs(LOG_SERVICE)
        async with connected_zeppelin(self._environment, self._settings, None) as meta:
            overview = await overview_of(meta)
        return zeppelin_report(overview, is_named=is_named(self._configuration, ZEPPELIN))

    async def _clogs(self) -> PartReport:
        self._needs(CLOGS)
        given = shipper_settings(self._settings).servers
        servers = [*dict.fromkeys([*given, *await self._ring()])]
        addresses = receiver_addresses(self._environment, self._settings, servers)
        return servers_report(CLOGS, await reached([*addresses]))

    async def _ring(self) -> list[str]:
        """The receivers of the ring, if one is configured and the metastore answers."""
        ring = self._settings.clogs_client.ring
        with suppress(RaftwoodError, TimeoutError):
            async with (
                asyncio.timeout(LAG_S),
                connected_metastore(self._environment, self._settings, None) as store,
            ):
                found = await ConfigurationStore(store, ring).current()
                return [each.address for each in found.configuration.servers] if found else []
        return []


async def _hub_figures(client: AsyncLogHubClient) -> HubFigures:
    projects = await client.projects()
    lists = await asyncio.gather(
        *(client.logstores(each.name) for each in projects.projects[:LOGSTORES_MAX])
    )
    streams = [
        (project.name, name)
        for project, found in zip(projects.projects, lists, strict=False)
        for name in found.logstores
    ]
    lags: tuple[Lag, ...] | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(LAG_S):
            found = await asyncio.gather(
                *(_lags(client, *stream) for stream in streams[:LOGSTORES_MAX])
            )
            lags = tuple(lag for each in found for lag in each)
    return HubFigures(projects.total, sum(each.total for each in lists), lags)


async def _lags(client: AsyncLogHubClient, project: str, logstore: str) -> list[Lag]:
    """Of shards whose slowest reader, which is registered, has not come to the end."""
    source = LogHubSource(client, project=project, logstore=logstore)
    lags = []
    try:
        for each in await client.describe(project, logstore):
            if each.required is None or int(each.required) >= int(each.next):
                continue
            received_ms = await source.next_received_ms(str(each.shard.id), each.required)
            if received_ms is not None:
                behind_s = max(0.0, time.time() - received_ms / 1000)
                name = f"{project}/{logstore}"
                lags.append(Lag(name, each.shard.id, each.required_by, behind_s))
    except NotFound:
        pass  # it was deleted meanwhile
    return lags


_UNANSWERED: Final = {
    LOG_SERVICE: "start the stores of cluster.members; `raftwood cluster status` shows what each "
    "of them says",
    LOGHUB: "start a gateway, or set loghub_client.gateways",
    BOOKIES: "its metastore is kept by the log service: see there",
    ZEPPELIN: "its meta server is kept by the log service: see there",
    CLOGS: "start a receiver, or set clogs_client.servers",
}


async def ask_part(part: str, ask: Callable[[], Awaitable[PartReport]]) -> PartReport:
    """The part's own report, or one that says why it has none; within the deadline."""
    try:
        async with asyncio.timeout(PART_S):
            return await ask()
    except TimeoutError:
        text = f"no answer within {PART_S:g} s"
    except InvalidInput as error:  # the settings lack something
        return left_out(part, error.message)
    except Unauthenticated as error:
        return report(part, "refuses these settings", [(error.message, _REFUSED)])
    except RaftwoodError as error:
        text = error.message
    return report(part, "does not answer", [(text, _UNANSWERED[part])])


async def reports_of(
    environment: Environment, configuration: Configuration[Settings]
) -> list[PartReport]:
    """All parts, asked at the same time."""
    parts = _Cluster(environment, configuration).parts()
    return await asyncio.gather(*(ask_part(part, ask) for part, ask in parts.items()))


# The command

app = App(name="status", help_format="plaintext")


@app.default
def status(
    *,
    wait_seconds: Annotated[
        float, Parameter(help="How long to wait until nothing is wrong any more.")
    ] = 0.0,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
    source: Source = DEFAULTS,
) -> int:
    """Show all parts of the cluster, what is wrong first; the exit status is 1 if something is.

    Each part has 5 seconds to answer. Parts that the settings do not name are left out.
    """
    configuration = source.load()

    async def main() -> list[PartReport]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while True:
            found = await reports_of(environment, configuration)
            if loop.time() >= deadline or not any(each.problems for each in found):
                return found
            await asyncio.sleep(_POLL_S)

    with real_environment() as environment:
        found = run(main())
    if all(each.state == "left out" for each in found):
        raise InvalidConfiguration(
            "no cluster is named: start one by `raftwood standalone`, choose one by `raftwood "
            "context use NAME`, or give --config FILE"
        )
    show(found, output)
    return 1 if any(each.problems for each in found) else 0


def show(reports: Sequence[PartReport], output: Format) -> None:
    problems = [problem for each in reports for problem in each.problems]
    if output == "json":
        plain: list[dict[str, Any]] = [
            {"part": each.part, "state": each.state, "text": each.text} for each in reports
        ]
        write_json({"problems": problems, "parts": plain})
        return
    for problem in problems:
        rows = [("problem", f"{problem.part}: {problem.text}"), ("", f"-> {problem.remedy}")]
        write_wrapped(rows)
    write_line("" if problems else "nothing is wrong\n")
    write_wrapped([(each.part, each.state, each.text) for each in reports])
