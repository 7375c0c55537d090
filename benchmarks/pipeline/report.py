"""What was measured, as tables, and how far it is from what is to be reached."""

import rich.table

from benchmarks.harness.report import Verdict, goals_table, table
from benchmarks.pipeline.cases import CASES, GOALS, KAFKA
from benchmarks.pipeline.compare import PipelineResults, Spent


def _kafkas(results: PipelineResults, case: str) -> Spent | None:
    return results.spent.get(KAFKA, {}).get(case)


def verdicts(results: PipelineResults) -> list[Verdict]:
    """The goals that this run says something about."""
    found = []
    for goal in GOALS:
        ours, its = results.spent.get(goal.row, {}).get(goal.case), _kafkas(results, goal.case)
        if ours is not None and its is not None:
            found.append(
                Verdict(
                    what=f"{goal.case}: {goal.row}, rows per CPU second against Kafka's connector",
                    measured=ours.rows_per_cpu_second / its.rows_per_cpu_second,
                    goal=goal.factor,
                    unit="×",
                    is_least=True,
                )
            )
    return found


def tables(results: PipelineResults) -> list[rich.table.Table]:
    made = [_queries(results)]
    found = verdicts(results)
    return [*made, goals_table("Pipeline: what is to be reached", found)] if found else made


def _queries(results: PipelineResults) -> rich.table.Table:
    headings = ["case", "rows from or to", "rows/s", "Spark µs", "servers µs"]
    made = table(
        f"Spark over {results.rows:,} records of 100 B; CPU per row",
        [*headings, "rows per CPU s", "it / kafka"],
        left=2,
    )
    for case in CASES:
        named, its = case, _kafkas(results, case)
        for row, cases in results.spent.items():
            spent = cases.get(case)
            if spent is None:
                continue
            ratio = None if its is None else spent.rows_per_cpu_second / its.rows_per_cpu_second
            made.add_row(
                named,
                row,
                f"{spent.rows_per_second:,.0f}",
                f"{spent.spark_us:.2f}",
                f"{spent.servers_us:.2f}",
                f"{spent.rows_per_cpu_second:,.0f}",
                "" if ratio is None or row == KAFKA else f"{ratio:.2f}×",
            )
            named = ""
    return made
