"""The command line of a comparison: which systems, how long, and how the results are shown."""

import argparse
import pathlib
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
import rich.console
import rich.table

from benchmarks.harness.comparison import Results
from benchmarks.harness.report import statements
from benchmarks.peers.programs import CACHE

Results_co = TypeVar("Results_co", bound=Results, covariant=True)
Pace_contra = TypeVar("Pace_contra", bound=msgspec.Struct, contravariant=True)


class Compare(Protocol[Pace_contra, Results_co]):
    def __call__(
        self,
        names: tuple[str, ...],
        pace: Pace_contra,
        *,
        folder: pathlib.Path,
        progress: Callable[[str], None],
    ) -> Results_co: ...


def run_command(
    description: str,
    systems: tuple[str, ...],
    compare: Compare[Pace_contra, Results_co],
    tables: Callable[[Results_co], list[rich.table.Table]],
    *,
    pace: Pace_contra,
    quick: Pace_contra,
) -> None:
    """A pace is a struct with a field `rounds`."""
    parser = argparse.ArgumentParser(description=description.split("\n", maxsplit=1)[0])
    parser.add_argument("--systems", default=",".join(systems), help="names, with commas between")
    parser.add_argument("--quick", action="store_true", help="short, to see that it works")
    parser.add_argument("--rounds", type=int, help="measurements per system and case")
    parser.add_argument("--folder", type=pathlib.Path, default=CACHE / "data", help="on a disk")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    options = parser.parse_args()
    names = tuple(options.systems.split(","))
    unknown = [name for name in names if name not in systems]
    if unknown:
        parser.error(f"no system {unknown[0]!r}: there are {', '.join(systems)}")
    chosen = quick if options.quick else pace
    if options.rounds is not None:
        chosen = msgspec.structs.replace(chosen, rounds=options.rounds)
    progress = rich.console.Console(stderr=True)
    results = compare(names, chosen, folder=options.folder.resolve(), progress=progress.print)
    if options.format == "json":
        print(msgspec.json.format(msgspec.json.encode(results)).decode())
        return
    console = rich.console.Console()
    for table in tables(results):
        console.print(table)
    for line in statements(results):
        console.print(line, markup=False)
