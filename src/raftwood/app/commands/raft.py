"""`raftwood raft`: what operators ask of a running cluster, and change in it."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from cyclopts import App, Parameter

from raftwood.app.commands.raft_recover import app as recover
from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.connecting import connected_stores
from raftwood.app.event_loop import run
from raftwood.app.groups import METASTORE_GROUP
from raftwood.app.operating import (
    add_learner,
    members_of,
    promote_when_caught_up,
    remove_member,
    status_of_all,
)
from raftwood.app.output import Format, write_line, write_rows
from raftwood.app.store_service import METRICS
from raftwood.base.errors import RaftwoodError, Unavailable
from raftwood.disk.real_environment import real_environment
from raftwood.raft.remote.admin import RaftAdmin
from raftwood.raft.remote.stores import Stores

app = App(name="raft", help_format="plaintext")
app.command(recover)

_Connect = Annotated[
    str | None,
    Parameter(help="Some stores, HOST:PORT[,HOST:PORT]; else cluster.members of the settings."),
]
_Group = Annotated[int, Parameter(help="The raft group; 1 is the metastore.")]
_Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]
_PAUSE_S = 0.2
_STATUS = {
    "store": "store",
    "address": "address",
    "member": "member",
    "role": "role",
    "term": "term",
    "applied": "applied",
    "last_index": "last",
    "first_index": "first",
    "waiting_bytes": "waiting bytes",
    "sessions": "sessions",
    "problem": "problem",
    "pid": "pid",
    "version": "version",
}
_MEMBERS = {
    "store": "store",
    "address": "address",
    "member": "member",
    "leads": "leads",
    "match": "has up to",
    "behind": "behind",
}


@app.command
def status(
    *,
    wait_seconds: Annotated[
        float, Parameter(help="How long to wait until stores answer and one leads.")
    ] = 0.0,
    connect: _Connect = None,
    group: _Group = METASTORE_GROUP,
    source: Source = DEFAULTS,
    output: _Output = "text",
) -> int:
    """Show each store's replica as it sees itself; the exit status is 1 if nobody leads."""

    async def work(stores: Stores, deadline: float) -> int:
        rows = await status_of_all(stores, group)
        while not any(row["role"] == "leader" for row in rows) and time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE_S)
            rows = await status_of_all(stores, group)
        write_rows(rows, _STATUS, output)
        return 0 if any(row["role"] == "leader" for row in rows) else 1

    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return _with_stores(connect, source, lambda stores: work(stores, deadline))
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_S)


@app.command
def members(
    *,
    connect: _Connect = None,
    group: _Group = METASTORE_GROUP,
    source: Source = DEFAULTS,
    output: _Output = "text",
) -> int:
    """List a group's members and how far each is, as the leader knows it."""

    async def work(stores: Stores) -> int:
        write_rows(members_of(await RaftAdmin(stores).leader_status(group)), _MEMBERS, output)
        return 0

    return _with_stores(connect, source, work)


@app.command
def add(
    store: int,
    address: Annotated[str, Parameter(help="Where the new store serves, HOST:PORT.")],
    *,
    connect: _Connect = None,
    group: _Group = METASTORE_GROUP,
    source: Source = DEFAULTS,
    output: _Output = "text",
) -> int:
    """Add a store that was started with --join, as a learner: it gets all data, without a vote."""

    async def work(stores: Stores) -> int:
        write_rows(members_of(await add_learner(stores, group, store, address)), _MEMBERS, output)
        return 0

    return _with_stores(connect, source, work)


@app.command
def promote(
    store: int,
    *,
    wait_seconds: Annotated[float, Parameter(help="How long to wait until it caught up.")] = 60.0,
    connect: _Connect = None,
    group: _Group = METASTORE_GROUP,
    source: Source = DEFAULTS,
    output: _Output = "text",
) -> int:
    """Give a learner a vote, once it has nearly all that the leader has."""

    async def work(stores: Stores) -> int:
        changed = await promote_when_caught_up(stores, group, store, wait_s=wait_seconds)
        write_rows(members_of(changed), _MEMBERS, output)
        return 0

    return _with_stores(connect, source, work)


@app.command
def remove(
    store: int,
    *,
    force: Annotated[
        bool, Parameter(negative="", help="Also where too few of the others answer.")
    ] = False,
    connect: _Connect = None,
    group: _Group = METASTORE_GROUP,
    source: Source = DEFAULTS,
    output: _Output = "text",
) -> int:
    """Remove a store from a group; it drops its replica, or does when it comes back."""

    async def work(stores: Stores) -> int:
        changed = await remove_member(stores, group, store, is_forced=force)
        write_rows(members_of(changed), _MEMBERS, output)
        return 0

    return _with_stores(connect, source, work)


@app.command
def transfer(
    store: int,
    *,
    connect: _Connect = None,
    group: _Group = METASTORE_GROUP,
    source: Source = DEFAULTS,
    output: _Output = "text",
) -> int:
    """Let another voter lead."""

    async def work(stores: Stores) -> int:
        admin = RaftAdmin(stores)
        await admin.transfer(group, store)
        write_rows(members_of(await admin.leader_status(group)), _MEMBERS, output)
        return 0

    return _with_stores(connect, source, work)


@app.command
def snapshot(
    *,
    store: Annotated[int | None, Parameter(help="Only at this store; else at all.")] = None,
    connect: _Connect = None,
    group: _Group = METASTORE_GROUP,
    source: Source = DEFAULTS,
    output: _Output = "text",
) -> int:
    """Take a snapshot and cut the log before it; the exit status is 1 if a store did not."""

    async def work(stores: Stores) -> int:
        admin = RaftAdmin(stores)

        async def one(target: int) -> dict[str, Any]:
            try:
                return {"store": target, "index": await admin.snapshot(group, store=target)}
            except RaftwoodError as error:
                return {"store": target, "index": None, "error": error.message}

        targets = [store] if store is not None else await _members(admin, group)
        rows = await asyncio.gather(*(one(target) for target in targets))
        columns = {"store": "store", "index": "snapshot at", "error": "error"}
        write_rows(rows, columns, output)
        return 1 if any(row["index"] is None for row in rows) else 0

    return _with_stores(connect, source, work)


@app.command
def metrics(
    store: int,
    *,
    connect: _Connect = None,
    source: Source = DEFAULTS,
) -> int:
    """Print one store's metrics in Prometheus' text format."""

    async def work(stores: Stores) -> int:
        channel = await stores.connected(store, 5_000)
        write_line((await channel.ask(METRICS, None, 5_000)).decode().rstrip())
        return 0

    return _with_stores(connect, source, work)


async def _members(admin: RaftAdmin, group: int) -> list[int]:
    leader = await admin.leader_status(group)
    return sorted({*leader.voters, *leader.learners})


def _with_stores(
    connect: str | None, source: Source, work: Callable[[Stores], Coroutine[Any, Any, int]]
) -> int:
    settings = source.load().settings

    async def main() -> int:
        async with connected_stores(environment, settings, connect) as stores:
            return await work(stores)

    with real_environment() as environment:
        return run(main())
