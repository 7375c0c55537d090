"""A server as a child: it ends as soon as its parent does, however that ended.

    python -m raftwood.cli.child_process serve --config FILE …

What follows is a command line of `raftwood`. The parent holds the other end of standard input and
writes nothing to it.
"""

import os
import sys
import threading

from raftwood.cli.command_line import run

_EXIT_ORPHANED = 3


def _end_with_parent() -> None:
    # Not through sys.stdin, whose lock the interpreter wants when it ends.
    os.read(0, 1)
    os._exit(_EXIT_ORPHANED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(run(sys.argv[1:]))
