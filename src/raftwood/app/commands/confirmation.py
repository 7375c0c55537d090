"""What cannot be undone is asked for once more."""

import sys

from raftwood.base.errors import InvalidInput


def is_confirmed() -> bool:
    """Whether the one at the terminal says yes; where nobody is there, `--yes` says it."""
    if not sys.stdin.isatty():
        raise InvalidInput("nobody is there to ask: read what is above, then give --yes")
    sys.stdout.write("Type yes to do it: ")
    sys.stdout.flush()
    return sys.stdin.readline().strip() == "yes"
