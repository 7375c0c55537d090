"""What follows from the events of a watch; and which paths are a glob's."""

import glob
from pathlib import Path

import pytest

from raftwood.clogs.tail.watch import EventKind, Globs, PathsToVisit, WatchEvent

PATHS = (
    *("a.log", "b.log.1", ".hidden.log", "sub/a.log", "sub/.b.log", "sub/deep/a.log"),
    *(".dark/a.log", "sub/.dark/a.log", "sub/deep/x", "other/a.log", "[odd].log"),
)
PATTERNS = (
    *("*.log", "*", ".*", "**", "**/*.log", "*/*.log", "sub/**/*.log", "**/deep/*", "s?b/a.log"),
    *("[as]*", "a.log", "missing", "sub/**", "**/.b.log", "[[]odd].log"),
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_path_matches_if_a_scan_would_find_it(tmp_path: Path, pattern: str) -> None:
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    found = set(glob.iglob(f"{tmp_path}/{pattern}", recursive=True))
    globs = Globs([f"{tmp_path}/{pattern}"], ())
    for path in PATHS:
        assert globs.matches(f"{tmp_path}/{path}") == (f"{tmp_path}/{path}" in found), path


def test_what_is_excluded_does_not_match_unless_it_is_named_as_it_is() -> None:
    globs = Globs(["/logs/*", "/logs/b.gz"], ("*.gz", "/logs/state/*"))
    matching = [each for each in ("a", "a.gz", "b.gz", "state/x") if globs.matches(f"/logs/{each}")]
    assert matching == ["a", "b.gz"]


def noticed(*events: tuple[str, ...]) -> PathsToVisit:
    found = PathsToVisit(Globs(["/logs/*.log"], ()))
    found.add(
        WatchEvent(EventKind[kind.upper()], *(f"/logs/{path}" for path in paths))
        for kind, *paths in events
    )
    return found


def named(found: PathsToVisit) -> dict[str, str]:
    return {
        path.removeprefix("/logs/"): origin.removeprefix("/logs/")
        for path, origin in found.take_named().items()
    }


def test_files_that_were_rotated_unseen_are_visited_in_their_order() -> None:
    found = noticed(
        ("created", "a.log"),
        ("moved", "a.1", "a.log"),
        ("created", "a.log"),
        ("moved", "a.2", "a.1"),
        ("moved", "a.1", "a.log"),
        ("created", "a.log"),
    )
    assert list(named(found).items()) == [("a.2", "a.log"), ("a.1", "a.log"), ("a.log", "")]
    assert found.missed_files == 0


def test_a_file_that_was_removed_before_it_was_visited_is_counted() -> None:
    found = noticed(
        ("created", "a.log"),
        ("removed", "a.log"),
        ("created", "other"),
        ("removed", "other"),
        ("created", "b.log"),
        ("created", "c.log"),
        ("moved", "c.log", "tmp"),
    )
    assert found.missed_files == 2
    found.visited("/logs/b.log")
    found.add([WatchEvent(EventKind.REMOVED, "/logs/b.log")])
    assert found.missed_files == 2


def test_what_is_written_is_visited_later_but_before_it_can_be_cut() -> None:
    found = noticed(("written", "a.log"), ("written", "b.log"), ("created", "a.log.1"))
    assert named(found) == {"a.log.1": "", "a.log": ""}
    assert list(found.written) == ["/logs/b.log"]


def test_lost_events_ask_for_a_scan() -> None:
    found = noticed(("unclear",))
    assert found.is_unclear
    assert not found.named
