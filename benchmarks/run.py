"""All comparisons, one after the other: what `make bench` does.

    python -m benchmarks.run [--quick] [--write]

`--write` puts the figures into benchmarks/README.md.
"""

import argparse
import datetime
import io
import os
import pathlib
import platform
import sys

import rich.console
import rich.table

from benchmarks import group_commit, rpc_echo

README = pathlib.Path(__file__).with_name("README.md")
WIDTH = 140
MARKS = ("<!-- figures -->", "<!-- end of figures -->")


def main() -> None:
    parser = argparse.ArgumentParser(description="All benchmarks, ratios in one run.")
    parser.add_argument("--quick", action="store_true", help="short rounds, to see that it works")
    parser.add_argument("--write", action="store_true", help="put the figures into README.md")
    options = parser.parse_args()
    seconds, rounds = (0.3, 1) if options.quick else (1.5, 5)
    # A pipe or a file has no width of its own.
    console = rich.console.Console(width=None if sys.stdout.isatty() else WIDTH)
    texts = []
    for name, benchmark in (("group commit", group_commit), ("RPC echo", rpc_echo)):
        with console.status(f"{name} …"):
            results = benchmark.compare(seconds, rounds)
        table = benchmark.table(results)
        console.print(table)
        texts.append(_as_text(table))
        for result in results:
            if result["goal"] and result["ratio"] < result["goal"]:
                console.print(
                    f"below the goal: {name}, {result['case']}: {result['ratio']:.2f}× "
                    f"of {result['goal']}×"
                )
    if options.write:
        _write("\n".join(texts))
        console.print(f"written to {README}")


def _as_text(table: rich.table.Table) -> str:
    """The table as it looks on a terminal of 140 columns, without colours."""
    file = io.StringIO()
    rich.console.Console(file=file, width=WIDTH).print(table)
    return f"```\n{file.getvalue().rstrip()}\n```\n"


def _write(figures: str) -> None:
    before, _, rest = README.read_text().partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    day = datetime.datetime.now(datetime.UTC).date()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}"
    python = f"Python {platform.python_version()}"
    head = f"{MARKS[0]}\nMeasured {day} on {machine}, {python}.\n\n"
    README.write_text(before + head + figures + MARKS[1] + after)


if __name__ == "__main__":
    main()
