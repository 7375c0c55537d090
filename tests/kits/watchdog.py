"""A run of tests that is killed with -9 leaves no process behind: a shell outlives it.

It reads which groups of processes began and which ended. When the pipe closes, for whatever reason,
it kills those that are left.
"""

import atexit
import os
import subprocess
from functools import cache

from tests.kits import resources

_PROGRAM = """
groups=' '
while read -r word group; do
    case "$word$groups" in
        began*) groups="$groups$group " ;;
        # Of a group that it does not know, the two parts would be the whole list twice.
        *" $group "*) groups="${groups%% $group *} ${groups#* $group }" ;;
    esac
done
for group in $groups; do kill -9 "-$group"; done
"""


class _Watchdog:
    def __init__(self) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            ("sh", "-c", _PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        resources.lasts(self._process.pid)
        atexit.register(self._end)

    def tell(self, word: str, group: int) -> None:
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), f"{word} {group}\n".encode())

    def _end(self) -> None:
        if self._owner == os.getpid():
            self._process.communicate()


@cache
def _watchdog(_: int) -> _Watchdog:
    """Of a process: one that was forked has a watchdog of its own."""
    return _Watchdog()


def began(group: int) -> None:
    """A process that leads a group of its own."""
    _watchdog(os.getpid()).tell("began", group)


def ended(group: int) -> None:
    _watchdog(os.getpid()).tell("ended", group)
