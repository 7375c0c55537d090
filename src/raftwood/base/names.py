"""The rule for names, and limits that several packages share."""

import re

from raftwood.base.errors import InvalidName

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_NAME = re.compile(NAME_PATTERN)

FRAME_BYTES_MAX = 64 << 20
"""The largest piece that is sent or stored; larger data are streamed in chunks."""

RECORD_BYTES_MAX = 32 << 20
"""The largest payload of one record; below a frame, so that a full record can be sent."""

STATE_BYTES_MAX = 64 << 10
"""The largest small state (such as a raft hard state) that a log keeps per group."""


def checked_name(kind: str, name: str) -> str:
    """Returns the name if it is valid, else raises `InvalidName`; `kind` is the named thing."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"{kind} name {name[:140]!r} is not allowed: use 1 to 128 letters, digits, '.', '_' "
            "or '-', beginning with a letter or digit"
        )
    return name
