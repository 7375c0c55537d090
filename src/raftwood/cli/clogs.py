"""`raftwood clogs`: rings of log servers; which server of a ring takes which file."""

from collections import Counter
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.base.errors import InvalidConfiguration, InvalidInput
from raftwood.cli.output import Format, write_json, write_line, write_rows
from raftwood.clogs.configuration import LogServer, RingConfiguration, decode_file
from raftwood.clogs.ring import Routing

app = App(name="clogs", help_format="plaintext")
for name, (place, line) in {
    "ring": ("clogs:ring_app", "Show which server of a ring takes which file."),
    "config": ("clogs_config:app", "Show and change the configuration of a ring."),
    "status": ("ship_status:app", "Show how a process that ships files is."),
}.items():
    # Loaded when they are called.
    app.command(f"raftwood.cli.{place}", name=name, help=line)


ring_app = App(
    name="ring", help="Show which server of a ring takes which file.", help_format="plaintext"
)

_SERVERS: Final = {
    "ring_name": "server",
    "address": "address",
    "weight": "weight",
    "points": "points",
}
_WITH_KEYS: Final = _SERVERS | {"keys": "keys", "share": "share"}


class _ServerLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One server of the file. What this command prints of a server can be given to it again."""

    host: str
    port: int
    weight: int = 1
    name: str | None = None
    ring_name: str | None = None
    points: int | None = None


@ring_app.default
def ring(
    *,
    servers: Annotated[
        str,
        Parameter(
            help="JSON file: a list of servers, {host, port, weight, name} each; or a file with a "
            "ring's whole configuration, as clients take it."
        ),
    ],
    keys: Annotated[str | None, Parameter(help="File with names of files, one per line.")] = None,
    isolated: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="A server that is out of the ring, by name; repeatable."),
    ] = (),
    hash_tag: Annotated[
        str | None,
        Parameter(
            help="Two characters: of names that have both, what is between is hashed. Empty: "
            "whole names always. Else as the configuration says, or {}."
        ),
    ] = None,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> None:
    """Show which server takes which file: as JSON each file's, else how many each server takes."""
    configuration = _configuration(servers)
    if hash_tag is not None:
        configuration = _with_hash_tag(configuration, hash_tag)
    routing = Routing(configuration, _live(configuration, isolated))
    names = None if keys is None else _keys(keys)
    placed = routing.servers_of(names or [])
    if output == "json" and names is not None:
        ring_names = [server.ring_name for server in placed]
        write_json(dict(zip(names, ring_names, strict=True)))
        return
    if routing.is_panic and output == "text":
        write_line("all servers are isolated: the whole ring is used")
    rows = [
        {**msgspec.to_builtins(server), "ring_name": server.ring_name, "points": points}
        for server, points in zip(routing.ring.servers, routing.ring.points, strict=True)
    ]
    if output == "json":
        write_json(rows)
        return
    counts = Counter(server.ring_name for server in placed)
    for row, server in zip(rows, routing.ring.servers, strict=True):
        taken = counts[server.ring_name]
        share = f"{taken / len(placed):.1%}" if placed else None
        row |= {"address": server.address, "keys": taken, "share": share}
    write_rows(rows, _SERVERS if names is None else _WITH_KEYS, output)


def _configuration(file: str) -> RingConfiguration:
    data = _content(file)
    if file.lower().endswith(".toml") or data.lstrip().startswith(b"{"):
        return decode_file(data, file)[0]
    try:
        lines = msgspec.json.decode(data, type=list[_ServerLine])
        plain = [
            {"host": each.host, "port": each.port, "weight": each.weight, "name": each.name or ""}
            for each in lines
        ]
        return RingConfiguration(servers=msgspec.convert(plain, type=tuple[LogServer, ...]))
    except ValueError as error:  # msgspec's errors and UTF-8's
        raise InvalidConfiguration(
            f"{file} has no servers that can be read: {error}; give a JSON list of "
            "{host, port, weight, name}"
        ) from error


def _with_hash_tag(configuration: RingConfiguration, hash_tag: str) -> RingConfiguration:
    changed = msgspec.structs.replace(configuration, hash_tag=hash_tag)
    try:
        return msgspec.convert(msgspec.to_builtins(changed), type=RingConfiguration)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"--hash-tag {hash_tag[:60]!r}: give two characters, or none for no tag"
        ) from error


def _live(configuration: RingConfiguration, isolated: tuple[str, ...]) -> set[str]:
    known = {server.ring_name for server in configuration.servers}
    for name in isolated:
        if name not in known:
            raise InvalidInput(
                f"--isolated {name[:253]!r}: the ring has no such server; `raftwood clogs ring "
                "--servers FILE` shows their names"
            )
    return known.difference(isolated)


def _keys(file: str) -> list[str]:
    lines = _content(file).replace(b"\r\n", b"\n").split(b"\n")
    if not lines[-1]:
        lines.pop()
    try:
        return [line.decode() for line in lines]
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} has a line that is no UTF-8: {error}") from error


def _content(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error
