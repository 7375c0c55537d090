"""Programs that log through clogs, as processes of their own."""

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from tests.kits.clogs.ring import KEY, SECRET

_BEGINNING = """
import atexit, logging, os, signal, sys, threading, time
early = []
def run_early():
    for each in early:
        each()
atexit.register(run_early)
from raftwood.clogs.client import ClogsHandler
log = logging.getLogger("program")
log.setLevel(logging.INFO)
log.propagate = False
def ship(file, **changes):
    settings = dict({settings!r}, **changes)
    handler = ClogsHandler(file, **settings)
    log.addHandler(handler)
    return handler
"""


class Program:
    """A Python program: `ship(file)` adds a handler to its logger `log`."""

    def __init__(self, text: str, servers: Sequence[str], **settings: object) -> None:
        given = {
            "servers": list(servers),
            "access_key": KEY,
            "access_secret": SECRET.decode(),
            "linger_ms": 5,
            "retry_first_ms": 20,
            "retry_longest_ms": 200,
            "exit_ms": 60_000,
            **{
                key: str(each) if isinstance(each, Path) else each for key, each in settings.items()
            },
        }
        self._command = [
            sys.executable,
            "-W",
            "always::ResourceWarning",
            "-c",
            _BEGINNING.format(settings=given) + textwrap.dedent(text),
        ]

    def start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, timeout_s: float = 120) -> "subprocess.CompletedProcess[str]":
        """To its end, which is a good one."""
        process = subprocess.run(
            self._command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert process.returncode == 0, process.stderr
        return process
