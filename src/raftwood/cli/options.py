"""Options that many commands have.

Where the settings come from, sizes and durations, settings as TOML text that `--config` reads back,
and the question before what cannot be undone.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from cyclopts import Parameter

from raftwood.base.configuration import (
    DEFAULT_ORIGIN,
    FILE_VARIABLE,
    Configuration,
    SettingValue,
    load_configuration,
)
from raftwood.base.errors import InvalidInput
from raftwood.base.text import parse_quantity
from raftwood.server.settings import Settings


@Parameter(name="*")
@dataclass(frozen=True)
class ServerSource:
    """Where a server's settings come from; take it as `source: ServerSource = SERVER_DEFAULTS`.

    A server reads no context: its settings must not depend on who starts it.
    """

    config: Annotated[
        str | None, Parameter(help="TOML file with settings; else RAFTWOOD_CONFIG names it.")
    ] = None
    assignments: Annotated[
        tuple[str, ...],
        Parameter(name="--set", negative="", help="One setting, section.key=value; repeatable."),
    ] = ()

    @property
    def file(self) -> str | None:
        """The TOML file, if there is one."""
        return self.config or os.environ.get(FILE_VARIABLE) or None

    def load(self) -> Configuration[Settings]:
        return self._load(reads_context=False)

    def _load(self, *, reads_context: bool) -> Configuration[Settings]:
        return load_configuration(
            Settings,
            file=self.file,
            environment=os.environ,
            assignments=self.assignments,
            reads_context=reads_context,
        )


SERVER_DEFAULTS = ServerSource()


@Parameter(name="*")
@dataclass(frozen=True)
class Source(ServerSource):
    """Where a client's settings come from; take it as a parameter, `source: Source = DEFAULTS`.

    If no file is given, the user's context is read.
    """

    config: Annotated[
        str | None,
        Parameter(
            help="TOML file with settings; else RAFTWOOD_CONFIG names it, else the context in use "
            "is read."
        ),
    ] = None

    def load(self) -> Configuration[Settings]:
        return self._load(reads_context=True)


DEFAULTS = Source()


_SCOPES = {
    "cluster": "the same on every node of the cluster",
    "node": "this node's own",
}


def toml_of(values: Sequence[SettingValue], *, every: bool) -> str:
    """A table per section; with `every` off, values at their default are commented out."""
    parts = []
    for section, members in groupby(values, key=lambda value: value.name.partition(".")[0]):
        lines: list[str] = []
        for member in members:
            if not lines:
                lines = [f"# Settings of this section are {_SCOPES[member.scope]}.", f"[{section}]"]
            key = member.name.partition(".")[2]
            lines.append(f"# {member.meaning} Give {member.allowed}.")
            # A hidden secret read back would become a secret of four stars.
            active = not member.secret and (every or member.origin != DEFAULT_ORIGIN)
            lines.append(f"{'' if active else '# '}{key} = {toml_value(member.value)}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def toml_value(value: Any) -> str:
    """One value as TOML writes it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, str):
        # JSON's text is TOML's basic string, but for DEL, which TOML wants escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if not isinstance(value, float) else repr(value)


def quantity_of(option: str, text: str, units: dict[str, int]) -> int:
    """A number with one of the units; what is wrong names the option."""
    try:
        return parse_quantity(text, units)
    except ValueError as error:
        raise InvalidInput(f"{option} {text[:60]!r}: {error}") from error


def is_confirmed() -> bool:
    """Whether the one at the terminal says yes; where nobody is there, `--yes` says it."""
    if not sys.stdin.isatty():
        raise InvalidInput("nobody is there to ask: read what is above, then give --yes")
    sys.stdout.write("Type yes to do it: ")
    sys.stdout.flush()
    return sys.stdin.readline().strip() == "yes"
