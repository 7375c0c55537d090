"""`raftwood cluster`: run one on this machine, look at one, and take stores out of it."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, RaftwoodError, Unavailable
from raftwood.base.logs import set_up_logs
from raftwood.cli.cluster_target import LOG_TARGET, LogTarget
from raftwood.cli.context import CONTEXT_OPTION, ContextOption, write_context
from raftwood.cli.output import Format, StatusLine, size_text, write_json, write_line, write_rows
from raftwood.cli.process import check_ready_file, stop_on_signals
from raftwood.cli.standalone import tell_parts
from raftwood.disk.real_environment import real_environment
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.hakeeper.commands import (
    ClusterView,
    DrainStore,
    ForgetStore,
    KeeperShardView,
)
from raftwood.logservice.hakeeper.messages import HAKEEPER_SHARD, AlarmKind
from raftwood.logservice.hakeeper.state import ClusterPhase
from raftwood.net.stores import Stores
from raftwood.raft.registry import how_to_recover
from raftwood.server.event_loop import run
from raftwood.server.group_membership import status_of_all
from raftwood.server.local_cluster import LocalCluster, running_cluster
from raftwood.server.parts import write_parts
from raftwood.server.settings import Settings
from raftwood.server.standalone import PORT_BASE


def up(
    *,
    stores: Annotated[int, Parameter(help="How many stores; three or more survive a loss.")] = 3,
    gateways: Annotated[int, Parameter(help="How many gateways.")] = 1,
    bookies: Annotated[
        int, Parameter(help="How many bookies, for logstores that are kept in DLOG; 0: none.")
    ] = 3,
    kv_nodes: Annotated[
        int, Parameter(help="How many nodes of Zeppelin, for keys and values; 0: none.")
    ] = 3,
    data: Annotated[str, Parameter(help="Folder that keeps everything.")] = "raftwood-cluster",
    port_base: Annotated[
        int, Parameter(help="The first of the ports, all on this machine's loopback address.")
    ] = PORT_BASE,
    ready_file: Annotated[
        str | None,
        Parameter(help="Written once all is ready: JSON, with a part for each service."),
    ] = None,
    context: ContextOption = CONTEXT_OPTION,
) -> None:
    """Run a cluster of processes on this machine until SIGTERM or SIGINT.

    The same as `raftwood standalone`, each part in a process of its own: what one of them does is
    not stopped by the end of another. Their log lines stand in the folder. What was written is
    there when it is started again with the same folder.
    """
    context.check()
    check_ready_file(ready_file)
    cluster = LocalCluster(
        os.path.abspath(data),
        stores=stores,
        gateways=gateways,
        bookies=bookies,
        kv_nodes=kv_nodes,
        port_base=port_base,
    )
    cluster.check_ports()
    settings = cluster.prepare()
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        run(_serve(environment, cluster, settings, ready_file, context))


async def _serve(
    environment: Environment,
    cluster: LocalCluster,
    settings: Settings,
    ready_file: str | None,
    context: ContextOption,
) -> None:
    stop = stop_on_signals(environment)
    async with running_cluster(environment, cluster, settings) as (parts, _):
        written = write_context(
            context,
            settings,
            parts,
            command="cluster up",
            name=f"cluster-{settings.cluster.name}",
        )
        tell_parts(cluster.folder, parts, written)
        if ready_file is not None:
            write_parts(ready_file, parts)
        await stop.wait()


app = App(name="cluster", help_format="plaintext")
app.command(up)

_POLL_S = 0.5
_STORES = {
    "store": "store",
    "address": "address",
    "state": "state",
    "failure_domain": "domain",
    "replicas": "replicas",
    "leaders": "leads",
    "free": "free",
    "version": "version",
}
_SHARDS = {
    "shard": "shard",
    "name": "name",
    "leader": "leader",
    "voters": "voters",
    "learners": "readers",
    "wanted": "wanted",
    "lagging": "behind",
    "kept": "keeps",
}
_SERVICES = {"service": "service", "kind": "kind", "address": "address", "state": "state"}
_TN_SHARDS = {
    "tn_shard": "TN shard",
    "log_shard": "log shard",
    "owner": "owner",
    "holder": "leaseholder id",
}
_ALARMS = {"kind": "alarm", "store": "store", "shard": "shard", "text": "what it is"}
_ORDERS = {"id": "order", "kind": "kind", "target": "to", "shard": "shard", "store": "store"}
_FAILURES = {"kind": "failed order", "target": "to", "shard": "shard", "error": "error"}
_FAILURES_SHOWN = 10


@app.command
def status(
    *,
    wait_seconds: Annotated[
        float, Parameter(help="How long to wait until stores answer and the cluster runs.")
    ] = 0.0,
    target: LogTarget = LOG_TARGET,
) -> int:
    """Show all that HAKeeper knows; the exit status is 1 while the cluster does not run."""

    async def work(keeper: KeeperClient, _: Settings) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        view = await keeper.describe()
        while view.phase is not ClusterPhase.RUNNING and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
            view = await keeper.describe()
        show(view, target.output)
        return 0 if view.phase is ClusterPhase.RUNNING else 1

    try:
        return _until_answered(lambda: target.with_keeper(work), wait_seconds)
    except (Unavailable, DeadlineExceeded) as error:
        _show_replicas_of_keeper(error, target)
        raise


@app.command
def drain(
    store: int,
    *,
    undo: Annotated[
        bool, Parameter(negative="", help="Let the store have replicas again.")
    ] = False,
    wait: Annotated[
        bool, Parameter(help="Wait until the store has no replica left.", negative="--no-wait")
    ] = True,
    wait_seconds: Annotated[float, Parameter(help="How long to wait at the most.")] = 3600.0,
    target: LogTarget = LOG_TARGET,
) -> int:
    """Move all replicas of a store to others, so that it can be stopped for good."""

    async def work(keeper: KeeperClient, _: Settings) -> int:
        await keeper.command(DrainStore(store, not undo))
        if wait and not undo:
            await _wait_until_empty(keeper, store, wait_seconds)
        view = await keeper.describe()
        rows = [row for row in _store_rows(view) if row["store"] == store]
        write_rows(rows, _STORES, target.output)
        return 0

    return target.with_keeper(work)


@app.command
def forget(store: int, *, target: LogTarget = LOG_TARGET) -> int:
    """Speak no more of a store that is gone and is a member of no shard."""

    async def work(keeper: KeeperClient, _: Settings) -> int:
        await keeper.command(ForgetStore(store))
        write_rows([{"store": store}], {"store": "forgotten store"}, target.output)
        return 0

    return target.with_keeper(work)


async def _wait_until_empty(keeper: KeeperClient, store: int, wait_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    with StatusLine(f"store {store} is being drained") as progress:
        while True:
            view = await keeper.describe()
            left = what_is_left(view, store)
            if not left:
                return
            progress.say(f"store {store} still has {left}")
            if loop.time() >= deadline:
                raise DeadlineExceeded(
                    f"store {store} still has {left}, and stays marked as draining"
                    f"{_too_few(view)}: see `raftwood cluster status`, or --undo"
                )
            await asyncio.sleep(_POLL_S)


def what_is_left(view: ClusterView, store: int) -> str:
    """What a store has to get rid of, in words; nothing where it is empty."""
    shards = [each.shard for each in view.shards if store in (*each.voters, *each.learners)]
    if shards:
        return f"replicas of shards {shards}"
    replicas = sum(each.replicas for each in view.stores if each.store == store)
    return f"{replicas} replicas to remove" if replicas else ""


def _too_few(view: ClusterView) -> str:
    texts = [each.text for each in view.alarms if each.kind is AlarmKind.TOO_FEW_STORES]
    return f" ({texts[0]})" if texts else ""


def _until_answered(work: Callable[[], int], wait_s: float) -> int:
    """Stores that are not there yet are asked again while there is time."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return work()
        except (Unavailable, DeadlineExceeded):
            if time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_S)


def _show_replicas_of_keeper(error: RaftwoodError, target: LogTarget) -> None:
    """HAKeeper does not answer: what each store says of its own replica of it, and what to do."""

    async def work(_: Environment, stores: Stores, __: Settings) -> int:
        rows = await status_of_all(stores, HAKEEPER_SHARD)
        if target.output == "json":
            write_json({"phase": None, "reason": error.message, "hakeeper": rows})
            return 1
        write_line("HAKeeper does not answer. What each store says of its replica of it:")
        for row in rows:
            about = row.get("problem") or row.get("error")
            write_line(
                f"store {row['store']} ({row['address']}): {row['role']}"
                f"{f': {about}' if about else ''}"
            )
        write_line(
            "A majority of them must run and have no problem: start those that are away. Where "
            f"they are gone for good, {how_to_recover(HAKEEPER_SHARD)}. 'raftwood raft status "
            "--group SHARD' tells the same of another shard."
        )
        return 1

    with suppress(RaftwoodError):  # no store answers at all, as the first error says
        target.with_stores(work)


def show(view: ClusterView, output: Format) -> None:
    """Print all of it; that the cluster could not be set up is an error as well."""
    if view.phase is ClusterPhase.BOOTSTRAP_FAILED:
        sys.stderr.write(f"error: the cluster could not be set up: {view.reason}\n")
    tables = _tables(view)
    if output == "json":
        head = {"phase": view.phase, "reason": view.reason, "tick": view.tick, "term": view.term}
        write_json(head | {name: rows for name, (rows, _) in tables.items()})
        return
    write_line(f"the cluster is {view.phase}{': ' + view.reason if view.reason else ''}")
    for rows, columns in tables.values():
        if rows:
            write_line("")
            write_rows(rows, columns, "text")


def _tables(view: ClusterView) -> dict[str, tuple[list[dict[str, Any]], dict[str, str]]]:
    services = [
        msgspec.to_builtins(msgspec.structs.asdict(each)) | {"state": _state(each.is_live)}
        for each in view.services
    ]
    alarms = [
        msgspec.structs.asdict(each)
        | {"shard": each.shard if each.shard >= 0 else None, "store": each.store or None}
        for each in view.alarms
    ]
    orders = [
        msgspec.structs.asdict(each) | {"target": each.to_service or f"store {each.to_store}"}
        for each in view.orders
    ]
    failures = [msgspec.structs.asdict(each) for each in view.failures[-_FAILURES_SHOWN:]]
    return {
        "stores": (_store_rows(view), _STORES),
        "shards": (_shard_rows(view), _SHARDS),
        "services": (services, _SERVICES),
        "tn_shards": ([msgspec.structs.asdict(each) for each in view.tn_shards], _TN_SHARDS),
        "alarms": (alarms, _ALARMS),
        "orders": (orders, _ORDERS),
        "failures": (failures, _FAILURES),
    }


def _state(is_live: bool, *, is_draining: bool = False) -> str:
    if not is_live:
        return "down"
    return "draining" if is_draining else "up"


def _store_rows(view: ClusterView) -> list[dict[str, Any]]:
    return [
        msgspec.structs.asdict(each)
        | {
            "state": _state(each.is_live, is_draining=each.is_draining),
            "free": f"{size_text(each.disk_free_bytes)} of {size_text(each.disk_bytes)}",
        }
        for each in view.stores
    ]


def _shard_rows(view: ClusterView) -> list[dict[str, Any]]:
    return [
        msgspec.structs.asdict(each)
        | {
            "leader": each.leader or None,
            "wanted": f"{each.wanted_voters}+{each.wanted_learners}",
            "lagging": _lagging(each),
            "kept": size_text(each.retained_bytes),
        }
        for each in view.shards
    ]


def _lagging(shard: KeeperShardView) -> dict[int, int | None]:
    """It is not known of a member that has not answered its leader, and that is worth a look."""
    others = [store for store in (*shard.voters, *shard.learners) if store != shard.leader]
    unknown = [store for store in others if shard.leader and store not in shard.lagging]
    return dict(sorted({**dict.fromkeys(unknown), **shard.lagging}.items()))
