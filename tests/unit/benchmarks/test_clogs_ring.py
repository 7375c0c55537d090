"""The benchmark of clogs' ring: what is shown, and what counts as reached."""

from benchmarks.clogs.ring import Results, notes, tables, verdicts


def results(*, rate: float = 2e6, missing: str = "") -> Results:
    made = Results(
        keys=100,
        by_batch={3: rate, 1000: rate / 2},
        one_by_one={3: 5e5, 1000: 3e5},
        built_ms={80: 8.0, 1000: 100.0},
        without_one_ms={80: 4.0, 1000: 50.0},
        missing=missing,
    )
    if not missing:
        made.of_peer, made.peer_built_ms = {3: 2.5e5}, {80: 50.0}
        made.peer_without_one_ms = {80: 48.0}
    return made


def test_a_million_look_ups_by_the_batch_are_to_be_reached() -> None:
    assert [each.is_reached for each in verdicts(results())] == [True, True]
    assert [each.is_reached for each in verdicts(results(rate=1.5e6))] == [True, False]


def test_ratios_are_shown_where_both_were_measured() -> None:
    looked_up, rebuilt, _ = tables(results())
    assert [list(column.cells) for column in looked_up.columns][4:] == [["8.0×", ""], ["2.0×", ""]]
    assert list(rebuilt.columns[5].cells) == ["12×", ""]


def test_a_peer_that_is_missing_is_named_with_the_reason() -> None:
    assert notes(results(missing="no network")) == ["- uhashring: not available: no network"]
    assert all(table.row_count for table in tables(results(missing="no network")))
