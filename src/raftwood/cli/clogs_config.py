"""`raftwood clogs config`: the configuration of a ring, which its clients follow."""

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.base.errors import InvalidInput, NotFound
from raftwood.cli.cluster_target import METASTORE_TARGET, MetastoreTarget, opened
from raftwood.cli.output import Format, time_text, write_json, write_line, write_rows
from raftwood.clogs.configuration import (
    CONFIGURATION_BYTES_MAX,
    RingConfiguration,
    VersionedConfiguration,
    configuration_digest,
    decode_file,
)
from raftwood.clogs.configuration_store import ConfigurationStore, no_configuration
from raftwood.clogs.ring import Routing
from raftwood.disk.real_environment import real_environment
from raftwood.server.event_loop import run

app = App(
    name="config",
    help="Show and change the configuration of a ring, which its clients follow.",
    help_format="plaintext",
)

SAMPLE: Final = 10_000
"""Names of files by which the effect of a change is shown."""
_Ring = Annotated[str, Parameter(help="The ring's name.")]
_Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]
_Expected = Annotated[
    int | None,
    Parameter(name="--expect-version", help="Only if this version still counts; 0 for none."),
]
_SET: Final = {"ring": "ring", "version": "version", "digest": "digest", "servers": "servers"}
_MOVED: Final = {"server": "server", "before": "files before", "after": "files after"}
_HISTORY: Final = {
    "version": "version",
    "is_current": "counts",
    "set_at": "set at",
    "servers": "servers",
    "replaced": "replaced",
    "comment": "comment",
}


@app.command
def get(
    *,
    version: Annotated[int | None, Parameter(help="This one; else the one that counts.")] = None,
    ring: _Ring = "default",
    where: MetastoreTarget = METASTORE_TARGET,
    output: _Output = "text",
) -> None:
    """Show the configuration, as text that `set` takes again."""

    async def work(store: ConfigurationStore) -> None:
        found = await _counting(store) if version is None else await store.version(version)
        plain = msgspec.to_builtins(found.configuration)
        if output == "text":
            write_json({"version": found.version} | plain)
        else:
            head = {"ring": ring, "version": found.version, "digest": found.digest}
            write_json(head | {"configuration": plain})

    _with_store(ring, where, work)


@app.command(name="set")
def set_(
    configuration: Annotated[str, Parameter(help="A JSON file, or a TOML file named so.")],
    /,
    *,
    comment: Annotated[str, Parameter(help="Why, for the history.")] = "",
    expected: _Expected = None,
    dry_run: Annotated[
        bool, Parameter(help="Change nothing: show which files would move.", negative=())
    ] = False,
    ring: _Ring = "default",
    where: MetastoreTarget = METASTORE_TARGET,
    output: _Output = "text",
) -> None:
    """Let another configuration count; one that is wrong is refused.

    A version in the file is the one that it was made from: it must count still.
    """
    given, version = decode_file(_content(configuration), configuration)
    basis = version if expected is None else expected

    async def work(store: ConfigurationStore) -> None:
        if dry_run:
            _show_moves(await store.current(), given, ring, output)
        else:
            _show(await store.set(given, comment, expected_version=basis), ring, output)

    _with_store(ring, where, work)


@app.command
def rollback(
    *,
    to: Annotated[
        int | None, Parameter(help="Any version that is kept; else the one before.")
    ] = None,
    expected: _Expected = None,
    ring: _Ring = "default",
    where: MetastoreTarget = METASTORE_TARGET,
    output: _Output = "text",
) -> None:
    """Let an older version count again."""

    async def work(store: ConfigurationStore) -> None:
        _show(await store.rollback(to, expected_version=expected), ring, output)

    _with_store(ring, where, work)


@app.command
def history(
    *,
    limit: Annotated[int, Parameter(help="So many at the most.")] = 20,
    ring: _Ring = "default",
    where: MetastoreTarget = METASTORE_TARGET,
    output: _Output = "text",
) -> None:
    """List the versions that are kept, the newest first."""
    if limit < 1:
        raise InvalidInput(f"--limit {limit} shows nothing: give 1 or more")

    async def work(store: ConfigurationStore) -> None:
        current = (await _counting(store)).version
        rows = []
        for each in await store.history(limit):
            row = msgspec.to_builtins(each) | {"is_current": each.version == current}
            if output == "text":
                row["is_current"] = "yes" if each.version == current else ""
                row["set_at"] = time_text(each.set_at_ms / 1000) if each.set_at_ms else None
            rows.append(row)
        write_rows(rows, _HISTORY, output)

    _with_store(ring, where, work)


def _show(found: VersionedConfiguration, ring: str, output: Format) -> None:
    servers = len(found.configuration.servers)
    row = {"ring": ring, "version": found.version, "digest": found.digest, "servers": servers}
    write_rows([row], _SET, output)


def _show_moves(
    current: VersionedConfiguration | None, wanted: RingConfiguration, ring: str, output: Format
) -> None:
    after = placed(wanted)
    before = after if current is None else placed(current.configuration)
    moved = sum(one != other for one, other in zip(before, after, strict=True))
    counts = (Counter(() if current is None else before), Counter(after))
    rows = [
        {"server": name, "before": counts[0][name], "after": counts[1][name]}
        for name in dict.fromkeys((*sorted(counts[0]), *sorted(counts[1])))
    ]
    is_same = current is not None and current.digest == configuration_digest(wanted)
    if output == "json":
        head = {
            "ring": ring,
            "version": None if current is None else current.version,
            "is_same": is_same,
            "files": SAMPLE,
            "moved": None if current is None else moved,
        }
        write_json(head | {"servers": rows})
        return
    if current is None:
        write_line(f"it is good; {no_configuration(ring)}")
    elif is_same:
        write_line(f"it is good, and the same as version {current.version}")
    else:
        share = f"{moved / SAMPLE:.1%}"
        write_line(
            f"it is good; {moved} of {SAMPLE} files, {share}, would have another server than in "
            f"version {current.version}"
        )
    write_rows(rows, _MOVED, output)


def placed(configuration: RingConfiguration) -> list[str]:
    """The servers of many files, while all servers are live."""
    routing = Routing(configuration, [server.ring_name for server in configuration.servers])
    names = [f"/var/log/application-{number}.log" for number in range(SAMPLE)]
    return [server.ring_name for server in routing.servers_of(names)]


async def _counting(store: ConfigurationStore) -> VersionedConfiguration:
    found = await store.current()
    if found is None:
        raise NotFound(no_configuration(store.ring))
    return found


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened_file:
            return opened_file.read(CONFIGURATION_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(
            f"{file} cannot be read: {reason}; name a file with a configuration"
        ) from error


def _with_store(
    ring: str,
    where: MetastoreTarget,
    work: Callable[[ConfigurationStore], Coroutine[Any, Any, None]],
) -> None:
    async def main() -> None:
        async with opened(environment, where) as store:
            await work(ConfigurationStore(store, ring, clock=environment.clock))

    with real_environment() as environment:
        run(main())
