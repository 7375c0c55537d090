"""`raftwood` for tests that call it a hundred times: a process that has loaded it forks for each.

What a command does, prints and ends with is what the installed one does; it only need not load the
same modules again. `QuickCommands` runs that process, and has a folder for the front of PATH:

raftwood ARGUMENT…         # carries out a command line
run-example FILE           # runs a program in Python, with warnings as errors

`tests.kits.pipeline.quick_python` has another one for Python itself, with other modules loaded.

Whoever needs the process itself, to pause and to kill it, has it as a `QuickProcess`.
"""

import ast
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from raftwood.cli import command_line

_CLIENT = """#!{python} -IS
import os, signal, socket, sys
umask = os.umask(0o077)
words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
request = repr((words, os.getcwd(), dict(os.environ), umask)).encode()
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
server.sendall(request)
pid = int.from_bytes(server.recv(4), "big")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int.from_bytes(server.recv(4), "big", signed=True)
sys.exit(code if code >= 0 else 128 - code)
"""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """What is called, and all that a process has from the one that starts it."""

    words: list[str]
    folder: str
    environment: dict[str, str]
    umask: int


class QuickProcess:
    """One command, as `subprocess.Popen` has it: it leads a group of its own."""

    def __init__(
        self, address: str, words: Sequence[str], output: int, log: int, environment: dict[str, str]
    ) -> None:
        self.returncode: int | None = None
        umask = os.umask(0o022)
        os.umask(umask)
        request = repr((tuple(words), os.getcwd(), environment, umask)).encode()
        given, stdin = os.pipe()
        self.stdin = open(stdin, "wb", buffering=0)  # noqa: SIM115  as long as the process
        self._server = socket.socket(socket.AF_UNIX)
        try:
            self._server.connect(address)
            length = len(request).to_bytes(4)
            socket.send_fds(self._server, [length], [given, output, log])
            self._server.sendall(request)
        finally:
            os.close(given)
        self.pid = int.from_bytes(self._server.recv(4))
        assert self.pid, "the process that forks has ended"

    def poll(self) -> int | None:
        """The exit status of one that has ended."""
        return self._status(0)

    def wait(self, timeout: float) -> int:
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("raftwood", timeout)
        return status

    def _status(self, timeout: float) -> int | None:
        if self.returncode is None and select.select([self._server], [], [], timeout)[0]:
            told = self._server.recv(4)
            assert told, "the process that forks has ended"
            self.returncode = int.from_bytes(told, signed=True)
            self._server.close()
        return self.returncode


class QuickCommands:
    """The process that forks, for the time of a block."""

    names: Sequence[str] = ("raftwood", "run-example")
    modules: Sequence[str] = ()
    """What it has loaded; where none are named, that of all commands."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self.path = f"{self._folder.name}/bin"
        self.address = address = f"{self._folder.name}/socket"
        os.mkdir(self.path)
        for name in self.names:
            client = Path(self.path, name)
            client.write_text(_CLIENT.format(python=sys.executable, address=address))
            client.chmod(0o700)
        self._process = subprocess.Popen(
            (sys.executable, "-m", __name__, address, *self.modules),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the process that forks did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._folder.cleanup()


def serve(address: str, *modules: str) -> None:
    """Until the standard input ends."""
    commands = [target.partition(":")[0] for target, _ in command_line._COMMANDS.values()]
    for module in modules or commands:
        importlib.import_module(module)
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _attend(connection)
            os._exit(0)
        connection.close()
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            pass  # whoever has ended


def _attend(connection: socket.socket) -> None:
    """One command, from its begin to its end; it ends with its client at the latest."""
    length, streams, _, _ = socket.recv_fds(connection, 4, 3)
    text = b""
    while len(text) < int.from_bytes(length):
        text += connection.recv(1 << 16)
    request = msgspec.convert(ast.literal_eval(text.decode()), Request)
    pid = os.fork()
    if pid == 0:
        connection.close()
        os.setpgid(0, 0)
        sys.exit(_carry_out(request, streams))
    for each in streams:
        os.close(each)
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)  # it does the same: whoever comes first
    connection.sendall(pid.to_bytes(4))
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([connection.fileno(), ended], [], [])
    is_over = ended in ready
    if not is_over:
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if is_over:
        with suppress(BrokenPipeError):
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))


def _carry_out(request: Request, streams: list[int]) -> int:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request.folder)
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.environment)
    program, *arguments = sys.argv = request.words
    if program == "raftwood":
        return command_line.run(arguments)
    if program == "python":
        return _run_python(arguments)
    warnings.simplefilter("error")
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def _run_python(arguments: list[str]) -> int:
    if arguments[:1] != ["-m"]:
        os.execv(sys.executable, [sys.executable, *arguments])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.getcwd(), *(each for each in given if each not in sys.path)]
    sys.argv = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    serve(*sys.argv[1:])
