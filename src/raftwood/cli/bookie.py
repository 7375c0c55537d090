"""`raftwood bookie`: one bookie, until it is told to stop; which ones there are; their repair."""

from collections import Counter
from functools import partial
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration, InvalidInput, NotFound
from raftwood.base.seams import MetaStore
from raftwood.cli.options import DEFAULTS, SERVER_DEFAULTS, ServerSource, Source
from raftwood.cli.output import Format, StatusLine, size_text, write_json, write_line, write_rows
from raftwood.cli.process import ServerContext, StartedServer, run_server
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookie.auditor import repaired
from raftwood.dlog.bookie.membership import bookies_in_limbo, known_bookies, running_bookies
from raftwood.dlog.bookie.metadata_store import MetaLedgers
from raftwood.dlog.bookie.server import BookieServer
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.client import LedgerClient
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.repair import GRACE_MS, RepairedLedger
from raftwood.server.bookies import auditing, remote_bookies
from raftwood.server.cluster import bookie_network, reload_certificates
from raftwood.server.cluster_client import awaited_metastore, connected_metastore
from raftwood.server.event_loop import run


def run_bookie(
    source: ServerSource, connect: str | None, *, begins_anew: bool, ready_file: str | None
) -> None:
    """Run one bookie until SIGTERM or SIGINT; `ready_file` is written once it serves."""
    settings = source.load().settings
    if settings.bookie.id.endswith(":0"):
        raise InvalidConfiguration(
            f"bookie.listen is {settings.bookie.listen}: a bookie is known by its address for "
            "ever, so give it a port"
        )

    async def start(place: ServerContext) -> StartedServer:
        store = await awaited_metastore(place.stack, place.environment, settings, connect)
        network = bookie_network(settings, settings.bookie.listen)
        server = await BookieServer.start(
            place.environment,
            settings.bookie,
            store,
            cluster=settings.cluster.name,
            network=network,
            metrics=place.metrics,
            log_settings=settings.log,
            begins_anew=begins_anew,
        )
        name, address = settings.cluster.name, server.bookie.id
        await place.stack.enter_async_context(
            auditing(
                place.environment,
                settings,
                store,
                remote_bookies(place.environment, settings, store),
                name=address,
                metrics=place.metrics,
            )
        )
        return StartedServer(
            server=server,
            line=f"bookie {address} of cluster {name} serves on {settings.bookie.listen}",
            addresses=(address,),
            reload_certificates=partial(
                reload_certificates, [] if network.tls is None else [network.tls]
            ),
        )

    run_server("bookie", source, settings, start, ready_file=ready_file)


app = App(name="bookie", help_format="plaintext")

_Connect = Annotated[
    str | None,
    Parameter(
        help="Stores of the cluster with the metastore, HOST:PORT[,…]; else cluster.members."
    ),
]
_Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]
_COLUMNS = {"id": "bookie", "rack": "rack", "is_read_only": "read-only"}
_STATUS_COLUMNS = {"bookie": "bookie", "state": "state", "ledgers": "ledgers", "remedy": "remedy"}
WHOLE = ("running", "read-only")
"""States of a bookie that has all entries which it should have."""
_REPAIR_COLUMNS = {
    "ledger": "ledger",
    "to": "now on",
    "copied": "entries copied",
    "copied_bytes": "bytes",
    "intact": "there before",
    "problem": "problem",
}


@app.command
def start(
    *,
    connect: _Connect = None,
    begin_anew: Annotated[
        bool,
        Parameter(
            negative="",
            help="Its old folder is gone or damaged, and bookie.data_folder a new one. Until "
            "raftwood bookie repair has copied its entries, it answers that it does not know.",
        ),
    ] = False,
    ready_file: Annotated[
        str | None,
        Parameter(help="Written once it serves: its address and process number."),
    ] = None,
    source: ServerSource = SERVER_DEFAULTS,
) -> None:
    """Run one bookie until SIGTERM or SIGINT; then it answers what is under way, and ends.

    It keeps entries of ledgers in bookie.data_folder, and registers in the cluster's metastore
    under its address. A second signal ends it at once. SIGHUP makes it read its TLS files again.
    """
    run_bookie(source, connect, begins_anew=begin_anew, ready_file=ready_file)


@app.command(name="list")
def list_bookies(
    *,
    connect: _Connect = None,
    output: _Output = "text",
    source: Source = DEFAULTS,
) -> None:
    """List the bookies that run."""
    settings = source.load().settings

    async def main() -> None:
        async with connected_metastore(environment, settings, connect) as store:
            found = await running_bookies(store)
        write_rows([msgspec.structs.asdict(each) for each in found], _COLUMNS, output)

    with real_environment() as environment:
        run(main())


@app.command
def status(
    *, connect: _Connect = None, output: _Output = "text", source: Source = DEFAULTS
) -> None:
    """Tell of all bookies that ever were: whether they run, and how many ledgers count on them.

    Ledgers of a bookie that is away, or began anew, have a copy less until it is repaired.
    """
    settings = source.load().settings

    async def main() -> list[dict[str, Any]]:
        async with connected_metastore(environment, settings, connect) as store:
            states = await bookie_states(store)
            counts = await ledger_counts(environment, store)
        rows = []
        for bookie in sorted({*states, *counts}):
            state = states.get(bookie, "away")
            is_whole = state in WHOLE or not counts[bookie]
            remedy = None if is_whole else f"raftwood bookie repair {bookie}"
            rows.append(
                {"bookie": bookie, "state": state, "ledgers": counts[bookie], "remedy": remedy}
            )
        return rows

    with real_environment() as environment:
        write_rows(run(main()), _STATUS_COLUMNS, output)


async def bookie_states(store: MetaStore) -> dict[BookieId, str]:
    """Of all bookies that ever registered: running, read-only, began anew, or away."""
    running = {each.id: each for each in await running_bookies(store)}
    in_limbo = await bookies_in_limbo(store)
    states: dict[BookieId, str] = dict.fromkeys(await known_bookies(store), "away")
    for bookie, info in running.items():
        states[bookie] = "read-only" if info.is_read_only else "running"
        if bookie in in_limbo:
            states[bookie] = "began anew"
    return states


async def ledger_counts(environment: Environment, store: MetaStore) -> Counter[BookieId]:
    """How many ledgers count on each bookie; reads the metadata of all of them."""
    ledgers = MetaLedgers(store, environment.random)
    counts: Counter[BookieId] = Counter()
    async for ledger in ledgers.ledgers():
        try:
            segments = (await ledgers.get(ledger)).metadata.segments
        except NoSuchLedger:
            continue  # it was deleted meanwhile
        counts.update({each for part in segments for each in part.bookies})
    await ledgers.close()
    return counts


@app.command
def repair(
    bookie: str,
    *,
    to: Annotated[
        str | None, Parameter(help="The bookie that gets the entries; else one is chosen.")
    ] = None,
    connect: _Connect = None,
    output: _Output = "text",
    source: Source = DEFAULTS,
) -> int:
    """Copy what a bookie should hold from other bookies, after its folder was lost or damaged.

    A bookie that runs, for it began anew, gets its entries back; else others get its place. An open
    ledger whose writer does not replace the bookie is recovered first. Each ledger is a step of its
    own: one that fails is left as it is and named, and the command may be given again.
    """
    settings = source.load().settings
    if to == bookie:
        raise InvalidInput(f"--to {to}: leave it out, and {bookie} gets its entries if it runs")

    async def main() -> list[RepairedLedger]:
        async with connected_metastore(environment, settings, connect) as store:
            client = LedgerClient(
                remote_bookies(environment, settings, store),
                MetaLedgers(store, environment.random),
                environment,
            )
            done = 0

            def told(result: RepairedLedger) -> None:
                nonlocal done
                done += 1
                progress.say(f"{done} ledgers, the last one is {result.ledger}")

            try:
                results = await repaired(
                    store,
                    BookieId(bookie),
                    lambda each: client.repair(
                        each, to=None if to is None else BookieId(to), grace_ms=GRACE_MS, told=told
                    ),
                )
                if not results and bookie not in await known_bookies(store):
                    raise NotFound(f"there is no bookie {bookie}: see raftwood bookie status")
                return results
            finally:
                await client.close()

    with real_environment() as environment, StatusLine(f"repairing {bookie}") as progress:
        results = run(main())
    _write_repair(bookie, results, output)
    return 1 if any(each.problem for each in results) else 0


def _write_repair(bookie: str, results: list[RepairedLedger], output: Format) -> None:
    failed = sum(bool(each.problem) for each in results)
    copied = sum(each.copied for each in results)
    rows = [msgspec.structs.asdict(each) for each in results]
    if output == "json":
        write_json({"bookie": bookie, "failed": failed, "copied": copied, "ledgers": rows})
        return
    if rows:
        for row in rows:
            row |= {"copied_bytes": size_text(row["copied_bytes"]), "to": ", ".join(row["to"])}
        write_rows(rows, _REPAIR_COLUMNS, "text")
    write_line(
        f"{len(results) - failed} ledgers of bookie {bookie} repaired, {copied} entries copied"
        + (f"; {failed} ledgers were left as they are: see above" if failed else "")
    )
