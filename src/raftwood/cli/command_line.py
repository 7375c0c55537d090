"""The `raftwood` command: what it understands, and how it ends.

A command stands in a module of its own beside this one and is loaded when it is called; a new one
is one line in `_COMMANDS`. Exit status: 0 done, 1 failed, 2 the user must change the request, 130
interrupted, 141 nobody reads the output.
"""

import functools
import os
import sys
import traceback
from typing import TYPE_CHECKING, Final

from raftwood import __version__
from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.base.text import escaped

if TYPE_CHECKING:
    from cyclopts import App

EXIT_FAILED: Final = 1
EXIT_INVALID: Final = 2
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141

_COMMANDS: Final = {
    "standalone": ("raftwood.cli.standalone:app", "Run all of it in one process."),
    "status": ("raftwood.cli.status:app", "Show all parts of a cluster, what is wrong first."),
    "doctor": ("raftwood.cli.doctor:app", "Check this machine, and the way to the cluster."),
    "serve": ("raftwood.cli.serve:app", "Run one store of a cluster."),
    "logservice": (
        "raftwood.cli.serve:logservice_app",
        "Run one store of the log service.",
    ),
    "gateway": ("raftwood.cli.gateway:app", "Run one gateway of LogHub."),
    "bookie": ("raftwood.cli.bookie:app", "Run one bookie, which keeps ledgers."),
    "produce": ("raftwood.cli.produce:app", "Put lines into a logstore of LogHub."),
    "ship": ("raftwood.cli.ship:app", "Follow files, and ship their lines to a ring."),
    "tail": ("raftwood.cli.tail:app", "Show the records of a logstore as they come."),
    "consume": (
        "raftwood.cli.consume:app",
        "Process a logstore's records, together with others.",
    ),
    "key": ("raftwood.cli.key:app", "Make, list and revoke access keys of LogHub."),
    "project": ("raftwood.cli.project:app", "Make and change projects of LogHub."),
    "logstore": ("raftwood.cli.logstore:app", "Make and change logstores of LogHub."),
    "shard": ("raftwood.cli.shard:app", "List, split and merge shards of logstores."),
    "group": ("raftwood.cli.group:app", "Make and look at consumer groups."),
    "pipeline": ("raftwood.cli.pipeline:app", "Run jobs on streams with Spark."),
    "log": ("raftwood.cli.log:app", "Make, write, read and truncate logs."),
    "dlog": ("raftwood.cli.dlog:app", "Make, write, read and shrink logs of ledgers."),
    "ledger": ("raftwood.cli.ledger:app", "Look at ledgers, and recover them."),
    "kv": ("raftwood.cli.kv:app", "Use and look after tables of keys and values."),
    "clogs": ("raftwood.cli.clogs:app", "Look at and change rings of log servers."),
    "cluster": (
        "raftwood.cli.cluster:app",
        "Look at and change a cluster of the log service.",
    ),
    "raft": ("raftwood.cli.raft:app", "Look at and change a running cluster."),
    "context": (
        "raftwood.cli.context:app",
        "Choose the cluster that commands and programs use.",
    ),
    "bench": ("raftwood.cli.bench:app", "Measure how fast the cluster in use is."),
    "config": ("raftwood.cli.config:app", "Show and check the configuration."),
    "store": ("raftwood.cli.store:app", "Check and dump a data folder."),
    "meta": ("raftwood.cli.meta:app", "Read, change and watch a metastore."),
    "completion": ("raftwood.cli.completion:app", "Print a shell's completion of commands."),
    "demo": ("raftwood.cli.demo:app", "See what Raftwood does, on this machine."),
}
"""Name → where its `cyclopts.App` is, and its line in the help."""

_GROUPS: Final = {
    "Run": ("standalone", "serve", "logservice", "gateway", "bookie", "demo"),
    "Streams": ("project", "logstore", "shard", "produce", "tail", "consume", "group", "key"),
    "Logs": ("log",),
    "Ledgers": ("dlog", "ledger"),
    "Keys and values": ("kv",),
    "Shipping": ("ship", "clogs"),
    "Pipeline": ("pipeline",),
    "Operate": (
        "status",
        "doctor",
        "bench",
        "cluster",
        "context",
        "config",
        "raft",
        "meta",
        "store",
        "completion",
    ),
}
"""Commands as the help shows them; those of no group come last."""


def main() -> None:
    """The entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Carry out one command line; returns the exit status."""
    debug = "--debug" in arguments
    tokens = [argument for argument in arguments if argument != "--debug"]
    try:
        status = _dispatch(tokens)
        # What is still in the buffer can break the pipe too, and only here can it be caught.
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes again at its end, and must find something to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return _ended(debug, "interrupted", EXIT_INTERRUPTED)
    except InvalidInput as error:
        return _ended(debug, error.message, EXIT_INVALID)
    except RaftwoodError as error:
        return _ended(debug, error.message, EXIT_FAILED)
    return status


def _dispatch(tokens: list[str]) -> int:
    if tokens == ["--version"]:
        # Answered without loading the command line's library: scripts ask this often.
        sys.stdout.write(__version__ + "\n")
        return 0
    if tokens and not tokens[0].startswith("-") and tokens[0] not in _COMMANDS:
        raise InvalidInput(_unknown(tokens[0]))
    from cyclopts import CycloptsError  # noqa: PLC0415

    try:
        result = application()(
            tokens, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        raise InvalidInput(f"{' '.join(str(error).split())} See `raftwood --help`.") from error
    return result if isinstance(result, int) else 0


def _unknown(command: str) -> str:
    """Told here: cyclopts would load every command to look for one that is spelt alike."""
    from difflib import get_close_matches  # noqa: PLC0415

    alike = get_close_matches(command, _COMMANDS, n=1)
    meant = f' Did you mean "{alike[0]}"?' if alike else ""
    return f'Unknown command "{command}".{meant} See `raftwood --help`.'


@functools.cache
def application() -> "App":
    """All commands; each is loaded when it is called."""
    from cyclopts import App, Group  # noqa: PLC0415

    whole = App(
        name="raftwood",
        help="A distributed log platform: ships, keeps, serves and processes logs.",
        help_epilogue="--debug shows the traceback of an error.",
        help_format="plaintext",
        version=__version__,
        suppress_keyboard_interrupt=False,
    )
    groups: dict[str, Group] = {}
    for number, (title, names) in enumerate(_GROUPS.items()):
        groups |= dict.fromkeys(names, Group(title, sort_key=number))
    for name, (place, line) in _COMMANDS.items():
        whole.command(place, name=name, help=line, group=groups.get(name))
    return whole


def _ended(debug: bool, message: str, status: int) -> int:
    if debug:
        traceback.print_exc()
    # A configuration tells all its mistakes at once, a line each.
    for line in message.splitlines():
        sys.stderr.write(f"error: {escaped(line)}\n")
    return status
