"""Settings as TOML text that `--config` reads back."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from raftwood.base.configuration import DEFAULT_ORIGIN, SettingValue

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
