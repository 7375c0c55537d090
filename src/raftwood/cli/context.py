"""`raftwood context`: client configuration files by name, of which one is in use.

`raftwood standalone` and `raftwood cluster up` write such a file about themselves: `write_context`.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.base.configuration import DEFAULT_ORIGIN, FILE_BYTES_MAX, compose
from raftwood.base.contexts import CONTEXT_VARIABLE, Contexts
from raftwood.base.errors import AlreadyExists, InvalidInput, NotFound, RaftwoodError
from raftwood.base.logs import get_logger
from raftwood.base.names import checked_name
from raftwood.base.settings import Secret, describe
from raftwood.cli.options import toml_value
from raftwood.cli.output import Format, write_json, write_line, write_rows
from raftwood.server.parts import Parts
from raftwood.server.settings import Settings

_log = get_logger("context")
app = App(name="context", help_format="plaintext")

_COLUMNS: Final = {"name": "context", "in_use": "in use", "file": "file"}
_Output = Annotated[Format, Parameter(name="--format", help="How to print it.")]
_Name = Annotated[str, Parameter(help="Name of the context.")]
_MADE: Final = "# Made by `raftwood "
"""A file that begins so was made by a running Raftwood, which may replace it."""


@app.command(name="list")
def list_contexts(*, output: _Output = "text") -> None:
    """List the contexts, and which of them is in use."""
    contexts = Contexts.of(os.environ)
    current = contexts.current()
    rows: list[dict[str, Any]] = [
        {"name": name, "in_use": name == current, "file": contexts.path(name)}
        for name in contexts.names()
    ]
    if output == "text":
        if not rows:
            write_line(
                "there is no context: `raftwood standalone` and `raftwood cluster up` write one, "
                "`raftwood context add` takes a file"
            )
            return
        rows = [row | {"in_use": "*" if row["in_use"] else ""} for row in rows]
    write_rows(rows, _COLUMNS, output)


@app.command
def use(name: _Name) -> None:
    """Let every command and program use a context from now on."""
    contexts = Contexts.of(os.environ)
    contexts.use(name)
    write_line(f"context {name} is in use")
    if contexts.current() != name:
        sys.stderr.write(f"warning: {CONTEXT_VARIABLE} is set, and counts more: unset it\n")


@app.command
def show(
    name: Annotated[str | None, Parameter(help="Name of the context; else the one in use.")] = None,
    *,
    secrets: Annotated[bool, Parameter(negative="", help="Show the secrets, too.")] = False,
    output: _Output = "text",
) -> None:
    """Print the settings of a context, without its secrets unless asked."""
    contexts = Contexts.of(os.environ)
    found = name or contexts.current()
    if found is None:
        raise NotFound("no context is in use: `raftwood context list` shows those there are")
    configuration = compose(
        Settings, data=contexts.read(found), file=contexts.path(found), context=found
    )
    given = [each.name for each in configuration.values if each.origin != DEFAULT_ORIGIN]
    sections = _sections(configuration.settings, given, shows_secrets=secrets)
    if output == "json":
        write_json({"context": found, "file": contexts.path(found), "settings": sections})
    else:
        write_line(f"# Context {found}: {contexts.path(found)}")
        write_line(_toml(sections))


@app.command
def add(
    name: _Name,
    file: Annotated[str, Parameter(help="TOML file with a client's settings; - for the input.")],
    /,
    *,
    replace: Annotated[
        bool, Parameter(negative="", help="Replace the context of this name, if there is one.")
    ] = False,
) -> None:
    """Add a context: a copy of a client's configuration file. The first one is in use at once."""
    contexts = Contexts.of(os.environ)
    if name in contexts.names() and not replace:
        raise AlreadyExists(f"context {name} exists: give another name, or --replace")
    data = _content(file)
    compose(Settings, data=data, file=file)  # a mistake in it is reported now
    contexts.write(name, data)
    if contexts.in_use() is None:
        contexts.use(name)
    write_line(f"context {name} is added{', and in use' if contexts.current() == name else ''}")


@app.command
def remove(name: _Name) -> None:
    """Delete a context. The cluster that it describes is left as it is."""
    Contexts.of(os.environ).remove(name)
    write_line(f"context {name} is removed")


def _content(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
    try:
        with open(file, "rb") as opened:
            return opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}") from error


def _sections(
    settings: Settings, names: list[str], *, shows_secrets: bool
) -> dict[str, dict[str, Any]]:
    """The named settings as plain data, by section."""
    sections: dict[str, dict[str, Any]] = {}
    for setting in describe(Settings):
        if setting.name in names:
            value = getattr(getattr(settings, setting.section), setting.key)
            is_shown = shows_secrets and isinstance(value, Secret)
            sections.setdefault(setting.section, {})[setting.key] = (
                value.reveal() if is_shown else setting.show(value)
            )
    return sections


def _toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n\n".join(
        "\n".join(
            (f"[{section}]", *(f"{key} = {toml_value(value)}" for key, value in values.items()))
        )
        for section, values in sections.items()
    )


@Parameter(name="*")
@dataclass(frozen=True)
class ContextOption:
    """Which context a local cluster writes about itself."""

    context: Annotated[
        str | None,
        Parameter(
            help="The context that clients on this machine find the cluster by; it is written at "
            "each start. Else standalone, or cluster- and the cluster's name."
        ),
    ] = None
    no_context: Annotated[bool, Parameter(negative="", help="Write no context.")] = False

    def check(self) -> None:
        """Refuse a name that cannot be one, before anything starts."""
        for name in (self.context, os.environ.get(CONTEXT_VARIABLE)):
            if name and not self.no_context:
                checked_name("context", name)


CONTEXT_OPTION: Final = ContextOption()


class WrittenContext(msgspec.Struct, frozen=True):
    """The context of a local cluster."""

    name: str
    file: str
    is_used: bool
    """Whether clients use it."""


def write_context(
    option: ContextOption, settings: Settings, parts: Parts, *, command: str, name: str
) -> WrittenContext | None:
    """Write a local cluster's context, and use it if none is in use; None where it is not wanted.

    `command` runs the cluster; `name` is the name of the context if the option gives none.
    """
    contexts = Contexts.of(os.environ)
    if option.no_context or contexts.are_off:
        return None
    name = option.context or name
    try:
        if name in contexts.names() and not contexts.read(name).startswith(_MADE.encode()):
            raise AlreadyExists(
                f"context {name} was added by hand, and is not replaced: give another name by "
                "--context, or --no-context"
            )
        contexts.write(name, context_file(settings, parts, command=command))
        if contexts.in_use() is None:
            contexts.use(name)
        return WrittenContext(name, contexts.path(name), is_used=contexts.current() == name)
    except (RaftwoodError, OSError) as error:
        # The cluster runs as well where the user's configuration folder cannot be written.
        _log.warning("no context is written", reason=str(error))
        return None


def context_file(settings: Settings, parts: Parts, *, command: str) -> bytes:
    """All that a client and an operator of a local cluster need, as a configuration file."""
    shared = [
        setting.name
        for setting in describe(Settings)
        if setting.scope == "cluster"
        and setting.name != "secrets.stores"  # proves a store to another, and no client is one
        and getattr(getattr(settings, setting.section), setting.key) != setting.default
    ]
    sections = _sections(settings, shared, shows_secrets=True)
    loghub = parts.loghub
    key = {"access_key": loghub.access_key, "access_secret": loghub.access_secret}
    stores = [*settings.cluster.addresses().values()]
    sections["loghub_client"] = {
        "gateways": loghub.native.split(","),
        **key,
        "lease_store": f"meta://{','.join(stores)}",
    }
    if parts.clogs:
        sections["clogs_client"] = {"servers": parts.clogs, **key}
    if parts.kv is not None:
        sections["zeppelin_client"] = {
            "addresses": [f"{parts.kv.host}:{parts.kv.port}"],
            "user": parts.kv.user,
            "password": parts.kv.password,
        }
    if authorities := settings.tls.authorities:
        sections["tls"] = {"authorities": os.path.abspath(authorities)}
        if parts.clogs and settings.tls.certificate:
            sections["clogs_client"]["authorities"] = os.path.abspath(authorities)
    return (
        f"{_MADE}{command}`, and written anew at each start.\n"
        "# Keep it to yourself: it holds the secrets.\n\n"
        f"{_toml(sections)}\n"
    ).encode()
