"""Writes the totals of the tally into docs/assurance.md, between two markers."""

from collections import defaultdict
from pathlib import Path

from tests.soak.kinds import KINDS
from tests.soak.tally import DIRTY, Run, Tally

PAGE = Path(__file__).parents[2] / "docs/assurance.md"
BEGIN = "<!-- soak: begin -->"
END = "<!-- soak: end -->"
FUZZ = "fuzz inputs: "


def write(page: Path, tally: Tally) -> None:
    """Replaces what stands between the markers."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} lacks the markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{table(tally)}{END}{after}")


def table(tally: Tally) -> str:
    """One row for each system and property. Runs on uncommitted changes do not count."""
    by_kind: dict[str, list[Run]] = defaultdict(list)
    for run in tally.runs:
        if not run.commit.endswith(DIRTY):
            by_kind[run.kind].append(run)
    lines = [
        "| system | property | done | failures | up to commit | repeat |",
        "|---|---|---|---|---|---|",
    ]
    for kind, runs in sorted(by_kind.items(), key=lambda item: list(KINDS).index(item[0])):
        failures = sum(len(run.failures) for run in runs)
        end = f"{failures} | `{runs[-1].commit}` | `make soak KINDS={kind} SEEDS={_seeds(runs)}`"
        lines += [
            f"| {system} | {what} | {_number(count)} | {end} |"
            for system, what, count in _amounts(runs)
        ]
    return "\n".join(lines) + "\n"


def _amounts(runs: list[Run]) -> list[tuple[str, str, float]]:
    totals: dict[str, float] = defaultdict(float)
    for run in runs:
        for name, count in run.counts.items():
            totals[name] += count
    parsers = [totals.pop(name) for name in list(totals) if name.startswith(FUZZ)]
    rows = [(*name.split(": ", 1), count) for name, count in totals.items() if count]
    if parsers:
        rows.append(("parsers", f"fuzz inputs, all {len(parsers)} parsers", sum(parsers)))
        rows.append(("parsers", "fuzz inputs, each parser at least", min(parsers)))
    return rows  # type: ignore[return-value]


def _seeds(runs: list[Run]) -> str:
    """The range that takes all seeds in."""
    ranges = [each for run in runs for each in run.seeds]
    return f"{min(first for first, _ in ranges)}:{max(end for _, end in ranges)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
