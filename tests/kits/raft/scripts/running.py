"""Runs script files and compares what they print with what they expect."""

import difflib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests.kits.raft.scripts.interaction import InteractionScript
from tests.kits.raft.scripts.parsing import Command, ScriptError, parse_script
from tests.kits.raft.scripts.rules import (
    CHANGE_COMMANDS,
    QUORUM_COMMANDS,
    ChangeScript,
    QuorumScript,
)

_LOG_LINE = re.compile(r"\s*(?:DEBUG|INFO|WARN|WARNING|ERROR|FATAL|PANIC)\b")


class Script(Protocol):
    """Carries out one command after the other."""

    def run(self, command: Command) -> str: ...


def script_for(commands: list[Command]) -> Script:
    """The kind of a file shows in its commands."""
    names = {command.name for command in commands}
    if names & QUORUM_COMMANDS:
        return QuorumScript()
    if names & CHANGE_COMMANDS:
        return ChangeScript()
    return InteractionScript()


def comparable(text: str, *, semantic: bool) -> list[str]:
    """The lines that are compared; the core writes no log, so that only `ok` may be left."""
    lines = text.splitlines()
    if semantic:
        lines = [line for line in lines if not _LOG_LINE.match(line)] or ["ok"]
    return lines


def run_file(path: Path, *, semantic: bool) -> str:
    """Run one file; answers the differences, nothing if there are none."""
    try:
        commands = parse_script(path.read_text())
    except ScriptError as error:
        return f"{path}: {error}\n"
    script = script_for(commands)
    differences = []
    for command in commands:
        title = f"{path}:{command.line_number}: {command.name}"
        expected = comparable(command.expected, semantic=semantic)
        try:
            actual = comparable(script.run(command), semantic=semantic)
        except Exception:
            # Whatever a script brings about fails that script, and the next file is run.
            differences.append(f"{title}\n{traceback.format_exc()}")
            break
        if actual != expected:
            lines = difflib.unified_diff(expected, actual, "expected", "actual", lineterm="", n=2)
            differences.append("\n".join([title, *lines]) + "\n")
    return "\n".join(differences)


def script_files(paths: list[Path]) -> Iterator[Path]:
    """The files themselves, and the `.txt` files below folders."""
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.txt"))
        else:
            yield path
