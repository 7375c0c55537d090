"""Servers that all workers of a run share: each is started when a test needs it for the first time.

A process below pytest's first one, the keeper, runs them. It ends them when its standard input
ends: when the run is over, and when the run is killed. Whatever else the run has started has the
keeper's folder in its environment, and is killed then. Tests use a server of the keeper's as if it
were their own: `shared(BookKeeperCluster).bookies[1].kill()`.

python -m tests.kits.servers.shared FOLDER        # the keeper; FOLDER is where it is reached
"""

import fcntl
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, TypeVar, cast

import psutil

from tests.kits import resources

VARIABLE = "RAFTWOOD_TEST_SERVERS"
"""The folder of the run's keeper, for workers."""
START_SECONDS_MAX = 60
END_SECONDS_MAX = 60
_SOCKET = "socket"

Server = TypeVar("Server")
Steps = tuple[str | int, ...]
"""From a server to something that it has: names of attributes, and numbers in lists."""


# What pytest's first process does


class Keeper:
    """The process that keeps servers, for the time of a block."""

    def __enter__(self) -> None:
        self._folder = tempfile.mkdtemp()
        self._process = subprocess.Popen(
            (sys.executable, "-m", __name__, self._folder),
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # so that Ctrl-C reaches it by the end of the run alone
        )
        resources.lasts(self._process.pid)
        os.environ[VARIABLE] = self._folder

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(END_SECONDS_MAX)
        shutil.rmtree(self._folder)


# What tests do


def shared(kind: type[Server]) -> Server:
    """The run's server of this kind, started if it does not run yet."""
    return cast("Server", _ask((f"{kind.__module__}:{kind.__qualname__}",)))


@contextmanager
def locked(kind: type, *, is_exclusive: bool = False) -> Iterator[None]:
    """A server of the run's is not broken meanwhile, or nobody else uses it."""
    with (Path(os.environ[VARIABLE]) / f"{kind.__name__}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
        yield


class _Remote:
    """An object of the keeper's."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # asked for by debuggers and test runners
        return _ask((*self._steps, name))


def _ask(steps: Steps, *call: Any) -> Any:
    with _connected() as connection:
        connection.send((steps, call))
        what, answer = connection.recv()
    match what:
        case "value":
            return answer
        case "error":
            raise answer
        case "method":
            return lambda *given, **named: _ask(steps, given, named)
        case "list":
            return [_Remote((*steps, number)) for number in range(answer)]
        case _:
            return _Remote(steps)


def _connected() -> Connection:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            return Client(f"{os.environ[VARIABLE]}/{_SOCKET}", "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < deadline, "nobody keeps servers"
            time.sleep(0.05)


# What the keeper does


class _Servers:
    """All that were asked for."""

    def __init__(self) -> None:
        self.ends = ExitStack()
        self._running: dict[str, Any] = {}
        self._starting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def of(self, kind: str) -> Any:
        with self._starting[kind]:
            if kind not in self._running:
                module, _, name = kind.partition(":")
                made = getattr(importlib.import_module(module), name)()
                self._running[kind] = self.ends.enter_context(made)
            return self._running[kind]

    def answer(self, connection: Connection) -> None:
        with connection:
            steps, call = connection.recv()
            try:
                connection.send(self._answer(steps, call))
            except Exception as error:
                connection.send(("error", error))

    def _answer(self, steps: Steps, call: tuple[Any, ...]) -> tuple[str, Any]:
        found = self.of(cast("str", steps[0]))
        for step in steps[1:]:
            found = found[step] if isinstance(step, int) else getattr(found, step)
        if call:
            return "value", found(*call[0], **call[1])
        if callable(found):
            return "method", None
        if isinstance(found, list):
            return "list", len(found)
        is_server = hasattr(found, "kill") or len(steps) == 1
        return ("server", None) if is_server else ("value", found)


def _serve(folder: str) -> None:
    servers = _Servers()
    with Listener(f"{folder}/{_SOCKET}", "AF_UNIX") as listener:

        def accept() -> None:
            while True:
                each = partial(servers.answer, listener.accept())
                threading.Thread(target=each, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        with servers.ends:
            sys.stdin.buffer.read()
            _end_all(folder)


def _end_all(folder: str) -> None:
    """Whoever was started below the run, and has not ended with it: the run was killed."""
    mark = f"{VARIABLE}={folder}\0".encode()
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            if process.pid != os.getpid() and mark in _environment(process.pid):
                process.kill()


def _environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"


if __name__ == "__main__":
    _serve(sys.argv[1])
