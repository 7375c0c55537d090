"""Asks every command for its help, and prints as JSON how each ended."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout

from cyclopts import App

from raftwood.cli import command_line


def paths(application: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name in application:
        if not name.startswith("-"):
            yield from paths(application[name], (*path, name))


def asked(path: tuple[str, ...]) -> tuple[str, int, str]:
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        status = command_line.run([*path, "--help"])
    return " ".join(path), status, output.getvalue()


if __name__ == "__main__":
    sys.stdout.write(json.dumps([asked(path) for path in paths(command_line.application())]))
