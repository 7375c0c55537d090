"""`raftwood raft`: look at the groups of a cluster, change them, and recover one without quorum."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, RaftwoodError, Unavailable
from raftwood.cli.options import DEFAULTS, Source, is_confirmed
from raftwood.cli.output import Format, StatusLine, write_line, write_rows
from raftwood.disk.real_environment import real_environment
from raftwood.net.stores import Stores
from raftwood.raft.admin import RaftAdmin
from raftwood.raft.offline import GroupCopy, examine_group, recover_group
from raftwood.server.cluster import METASTORE_GROUP
from raftwood.server.cluster_client import connected_stores
from raftwood.server.event_loop import run
from raftwood.server.group_membership import (
    add_learner,
    members_of,
    promote_when_caught_up,
    remove_member,
    replace_member,
    status_of_all,
)
from raftwood.server.store import METRICS

recover_app = App(name="recover", help_format="plaintext")


@recover_app.default
def recover(
    *,
    data_folder: Annotated[str, Parameter(help="The folder of a store that is stopped.")],
    group: Annotated[int, Parameter(help="The raft group.")],
    members: Annotated[
        str,
        Parameter(help="STORE=HOST:PORT[,…]: this store, and others that never were in the group."),
    ],
    yes: Annotated[bool, Parameter(help="Do it without asking.", negative=())] = False,
) -> int:
    """Let a group go on from this store's copy, after its other members were lost for good.

    Run it on one store alone: of those that are left, on the one with the highest last term, then
    the highest last index. Entries that only the lost stores had are gone.
    """
    named = _parsed_members(members)

    async def main(environment: Environment) -> int:
        _tell(await examine_group(environment, data_folder, group), named)
        if not yes and not is_confirmed():
            write_line("nothing was changed")
            return 1
        await recover_group(environment, data_folder, group, named)
        write_line(
            f"done: start the store, and it leads group {group} with its new members. Stores join "
            "with new numbers and empty folders."
        )
        return 0

    with real_environment() as environment:
        return run(main(environment))


def _parsed_members(text: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for part in text.split(","):
        store, equals, address = part.partition("=")
        if not equals or not store.isdecimal() or not int(store) or int(store) in found:
            raise InvalidInput(f"--members {text!r}: give STORE=HOST:PORT[,…], each store once")
        found[int(store)] = address
    return found


def _tell(copy: GroupCopy, members: dict[int, str]) -> None:
    gone = [str(store) for store in copy.stores if store not in members]
    write_line(
        f"store {copy.store} has group {copy.group} up to entry {copy.last_index} of term "
        f"{copy.last_term}; entries up to {copy.commit} are known to be committed"
    )
    write_line(
        "From now on all of them count as committed. What only other stores had is lost, also what "
        "was acknowledged to clients. Before you go on, compare this copy with those of all stores "
        "that are left, and choose the one with the highest term, then the highest entry."
    )
    write_line(f"new members: {', '.join(f'{store} ({members[store]})' for store in members)}")
    write_line(f"given up: {', '.join(gone) or 'none'}. Never start these with their old folders.")


app = App(name="raft", help_format="plaintext")
app.command(recover_app)


@Parameter(name="*")
@dataclass(frozen=True)
class RaftCluster:
    """The options by which a command reaches a cluster."""

    connect: Annotated[
        str | None,
        Parameter(help="Some stores, HOST:PORT[,HOST:PORT]; else cluster.members of the settings."),
    ] = None
    source: Source = DEFAULTS

    def run(self, work: Callable[[Stores], Coroutine[Any, Any, int]]) -> int:
        """Do something with the cluster's stores; answers the exit status."""
        settings = self.source.load().settings

        async def main() -> int:
            async with connected_stores(environment, settings, self.connect) as stores:
                return await work(stores)

        with real_environment() as environment:
            return run(main())


CLUSTER = RaftCluster()


@Parameter(name="*")
@dataclass(frozen=True)
class RaftTarget:
    """Which group of which cluster, and how to print what came of it."""

    cluster: RaftCluster = CLUSTER
    group: Annotated[int, Parameter(help="The raft group; 1 is the metastore.")] = METASTORE_GROUP
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text"


RAFT_TARGET = RaftTarget()
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
    target: RaftTarget = RAFT_TARGET,
) -> int:
    """Show each store's replica as it sees itself; the exit status is 1 if nobody leads."""

    async def work(stores: Stores, deadline: float) -> int:
        rows = await status_of_all(stores, target.group)
        while not any(row["role"] == "leader" for row in rows) and time.monotonic() < deadline:
            await asyncio.sleep(_PAUSE_S)
            rows = await status_of_all(stores, target.group)
        write_rows(rows, _STATUS, target.output)
        return 0 if any(row["role"] == "leader" for row in rows) else 1

    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return target.cluster.run(lambda stores: work(stores, deadline))
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_S)


@app.command
def members(
    *,
    target: RaftTarget = RAFT_TARGET,
) -> int:
    """List a group's members and how far each is, as the leader knows it."""

    async def work(stores: Stores) -> int:
        write_rows(
            members_of(await RaftAdmin(stores).leader_status(target.group)), _MEMBERS, target.output
        )
        return 0

    return target.cluster.run(work)


@app.command
def add(
    store: int,
    address: Annotated[str, Parameter(help="Where the new store serves, HOST:PORT.")],
    *,
    target: RaftTarget = RAFT_TARGET,
) -> int:
    """Add a store that was started with --join, as a learner: it gets all data, without a vote."""

    async def work(stores: Stores) -> int:
        write_rows(
            members_of(await add_learner(stores, target.group, store, address)),
            _MEMBERS,
            target.output,
        )
        return 0

    return target.cluster.run(work)


@app.command
def promote(
    store: int,
    *,
    wait_seconds: Annotated[float, Parameter(help="How long to wait until it caught up.")] = 60.0,
    target: RaftTarget = RAFT_TARGET,
) -> int:
    """Give a learner a vote, once it has nearly all that the leader has."""

    async def work(stores: Stores) -> int:
        with StatusLine(f"store {store} is catching up"):
            changed = await promote_when_caught_up(stores, target.group, store, wait_s=wait_seconds)
        write_rows(members_of(changed), _MEMBERS, target.output)
        return 0

    return target.cluster.run(work)


@app.command
def remove(
    store: int,
    *,
    force: Annotated[
        bool, Parameter(negative="", help="Also where too few of the others answer.")
    ] = False,
    target: RaftTarget = RAFT_TARGET,
) -> int:
    """Remove a store from a group; it drops its replica, or does when it comes back."""

    async def work(stores: Stores) -> int:
        changed = await remove_member(stores, target.group, store, is_forced=force)
        write_rows(members_of(changed), _MEMBERS, target.output)
        return 0

    return target.cluster.run(work)


@app.command
def replace(
    old: Annotated[int, Parameter(help="The store that is lost, or is to go.")],
    new: Annotated[int, Parameter(help="A store with another number, started with --join.")],
    address: Annotated[str, Parameter(help="Where the new store serves, HOST:PORT.")],
    *,
    wait_seconds: Annotated[float, Parameter(help="How long to wait until it caught up.")] = 60.0,
    target: RaftTarget = RAFT_TARGET,
) -> int:
    """Put a new store in the place of another: add it, give it a vote, remove the old one.

    The same command again goes on where it was interrupted.
    """

    async def work(stores: Stores) -> int:
        with StatusLine(f"store {new} is catching up"):
            changed = await replace_member(
                stores, target.group, old=old, new=new, address=address, wait_s=wait_seconds
            )
        write_rows(members_of(changed), _MEMBERS, target.output)
        return 0

    return target.cluster.run(work)


@app.command
def transfer(
    store: int,
    *,
    target: RaftTarget = RAFT_TARGET,
) -> int:
    """Let another voter lead."""

    async def work(stores: Stores) -> int:
        admin = RaftAdmin(stores)
        await admin.transfer(target.group, store)
        write_rows(members_of(await admin.leader_status(target.group)), _MEMBERS, target.output)
        return 0

    return target.cluster.run(work)


@app.command
def snapshot(
    *,
    store: Annotated[int | None, Parameter(help="Only at this store; else at all.")] = None,
    target: RaftTarget = RAFT_TARGET,
) -> int:
    """Take a snapshot and cut the log before it; the exit status is 1 if a store did not."""

    async def work(stores: Stores) -> int:
        admin = RaftAdmin(stores)

        async def one(member: int) -> dict[str, Any]:
            try:
                return {"store": member, "index": await admin.snapshot(target.group, store=member)}
            except RaftwoodError as error:
                return {"store": member, "index": None, "error": error.message}

        targets = [store] if store is not None else await _members(admin, target.group)
        rows = await asyncio.gather(*(one(each) for each in targets))
        columns = {"store": "store", "index": "snapshot at", "error": "error"}
        write_rows(rows, columns, target.output)
        return 1 if any(row["index"] is None for row in rows) else 0

    return target.cluster.run(work)


@app.command
def metrics(
    store: int,
    *,
    cluster: RaftCluster = CLUSTER,
) -> int:
    """Print one store's metrics in Prometheus' text format."""

    async def work(stores: Stores) -> int:
        channel = await stores.connected(store, 5_000)
        write_line((await channel.ask(METRICS, None, 5_000)).decode().rstrip())
        return 0

    return cluster.run(work)


async def _members(admin: RaftAdmin, group: int) -> list[int]:
    leader = await admin.leader_status(group)
    return sorted({*leader.voters, *leader.learners})
