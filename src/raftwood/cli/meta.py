"""`raftwood meta`: read, change and watch a metastore."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.base.errors import Conflict, InvalidInput, NotFound
from raftwood.base.seams import MetaStore, RemoveKey, SetKey
from raftwood.cli.cluster_target import METASTORE_TARGET, MetastoreTarget, opened
from raftwood.cli.output import Format, write_record, write_rows
from raftwood.disk.real_environment import real_environment
from raftwood.server.event_loop import run

app = App(name="meta", help_format="plaintext")

_Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]
_COLUMNS = {"key": "key", "value": "value", "version": "version"}
_CHANGE = ("version", "key", "value")


@app.command
def get(key: str, *, where: MetastoreTarget = METASTORE_TARGET, output: _Output = "text") -> None:
    """Show a key's value and version."""

    async def work(store: MetaStore) -> None:
        found = await store.get(key)
        if found is None:
            raise NotFound(f"there is no key {key!r}: `raftwood meta list` shows what there is")
        write_rows([_row(key, found.value, found.version)], _COLUMNS, output)

    _with_store(where, work)


@app.command
def put(
    key: str, value: str, *, where: MetastoreTarget = METASTORE_TARGET, output: _Output = "text"
) -> None:
    """Set a key, whatever it was before."""

    async def work(store: MetaStore) -> None:
        outcome = await store.transact((), (SetKey(key, value.encode()),))
        write_rows([{"version": outcome.version}], {"version": "version"}, output)

    _with_store(where, work)


@app.command
def cas(
    key: str,
    value: str,
    *,
    version: Annotated[int, Parameter(help="The version that it must have; 0 for absent.")],
    where: MetastoreTarget = METASTORE_TARGET,
    output: _Output = "text",
) -> None:
    """Set a key if its version still is the one named."""

    async def work(store: MetaStore) -> None:
        changed = await store.compare_and_set(key, value.encode(), version=version)
        if changed is None:
            raise Conflict(f"key {key!r} no longer has version {version}: read it again")
        write_rows([{"version": changed}], {"version": "version"}, output)

    _with_store(where, work)


@app.command
def delete(
    key: str, *, where: MetastoreTarget = METASTORE_TARGET, output: _Output = "text"
) -> None:
    """Remove a key, or nothing if there is none."""

    async def work(store: MetaStore) -> None:
        outcome = await store.transact((), (RemoveKey(key),))
        write_rows([{"version": outcome.version}], {"version": "version"}, output)

    _with_store(where, work)


@app.command(name="list")
def list_keys(
    prefix: str = "",
    *,
    limit: int = 1000,
    where: MetastoreTarget = METASTORE_TARGET,
    output: _Output = "text",
) -> None:
    """List the keys below a prefix."""

    async def work(store: MetaStore) -> None:
        entries = (await store.range(prefix=prefix, limit=limit)).entries
        write_rows([_row(each.key, each.value, each.version) for each in entries], _COLUMNS, output)

    _with_store(where, work)


@app.command
def status(*, where: MetastoreTarget = METASTORE_TARGET, output: _Output = "text") -> None:
    """Show the store's version and how much it holds."""

    async def work(store: MetaStore) -> None:
        row = msgspec.structs.asdict(await store.status())
        write_rows([row], {name: name.replace("_", " ") for name in row}, output)

    _with_store(where, work)


@app.command
def watch(
    prefix: str = "",
    *,
    after: Annotated[int, Parameter(help="Show changes after this version.")] = 0,
    count: Annotated[int | None, Parameter(help="End after so many changes.")] = None,
    where: MetastoreTarget = METASTORE_TARGET,
    output: _Output = "text",
) -> None:
    """Show changes below a prefix as they come, a line each; a removed key has no value."""
    if count is not None and count < 1:
        raise InvalidInput(f"--count {count} shows nothing: give 1 or more")

    async def work(store: MetaStore) -> None:
        left = count
        async for changes in store.watch(prefix, after_version=after):
            for each in changes[:left]:
                write_record(_row(each.key, each.value, each.version), _CHANGE, output)
            if left is not None:
                left -= len(changes)
                if left <= 0:
                    return

    _with_store(where, work)


def _row(key: str, value: bytes | None, version: int) -> dict[str, Any]:
    text = None if value is None else value.decode(errors="backslashreplace")
    return {"key": key, "value": text, "version": version}


def _with_store(
    where: MetastoreTarget, work: Callable[[MetaStore], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        async with opened(environment, where) as store:
            await work(store)

    with real_environment() as environment:
        run(main())
