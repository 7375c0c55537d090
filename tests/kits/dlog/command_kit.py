"""Commands carried out in the test's process, on ledgers that run elsewhere."""

import io
import json
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from raftwood.cli.command_line import run


class Commands:
    """All with the same flags, which say where the ledgers are."""

    def __init__(self, *flags: str) -> None:
        self.flags = flags

    def run(self, *arguments: str, status: int = 0, expect: str = "") -> str:
        """What it printed, or its error where it is to fail."""
        errors = io.StringIO()
        # A real file: some commands print bytes, and some look whether anybody reads them.
        with tempfile.TemporaryFile("w+") as output:
            with redirect_stdout(output), redirect_stderr(errors):
                ended = run([*arguments, *self.flags])
            output.seek(0)
            printed = output.read()
        assert ended == status, (arguments, printed, errors.getvalue())
        assert "Traceback" not in errors.getvalue()
        shown = errors.getvalue() if status else printed
        assert expect in shown
        return shown

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--format=json"))

    def messages(self, *arguments: str) -> list[str]:
        lines = self.run("dlog", "read", *arguments, "--format=json").splitlines()
        return [json.loads(line)["data"] for line in lines]

    def append(self, log: str, *messages: str) -> Sequence[str]:
        """Where they stand."""
        return [row["at"] for row in self.json("dlog", "append", log, *messages)]
