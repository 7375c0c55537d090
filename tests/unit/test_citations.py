"""Comments name the tests, scripts and planted bugs that show a rule: each of them exists."""

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.kits.server.pages import ROOT

_LINE_ENDS = re.compile(r"\s*\n[\s#]*")
_PATH = re.compile(r"\btests/[\w/.]*\w")
_SCRIPT = re.compile(r"\b\w+\.txt\b")
_TEST = re.compile(r"(?:\b(test_\w+)(?:\.py)?:: ?)?\b(test_\w+)")
_BUGS = re.compile(r'planted bugs?:? ("[^"]+"(?:,?(?: and| or)? "[^"]+")*)', re.IGNORECASE)


class _Tests:
    """What there is below `tests`."""

    def __init__(self) -> None:
        self.paths = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*")}
        self.modules: dict[str, set[str]] = defaultdict(set)
        """Test functions, by the name of their module."""
        self.strings: set[str] = set()
        """The names of planted bugs, among others."""
        for path in (ROOT / "tests").rglob("*.py"):
            text = path.read_text()
            self.modules[path.stem].update(re.findall(r"def (test_\w+)", text))
            if not path.is_relative_to(ROOT / "tests/unit"):
                self.strings.update(re.findall(r'"([^"\n]+)"', text))
        self.functions = set[str]().union(*self.modules.values())

    def lacks(self, source: str, *, names_scripts: bool = False) -> Iterator[str]:
        """The names in a source's comments and docstrings that nothing below `tests` has."""
        text = _LINE_ENDS.sub(" ", source)
        for path in _PATH.findall(text):
            if not {path, f"{path}.py"} & self.paths:
                yield path
        for module, name in _TEST.findall(text):
            if module and name not in self.modules.get(module, ()):
                yield f"{module}::{name}"
            elif name not in self.functions and name not in self.modules:
                yield name
        for bugs in _BUGS.findall(text):
            yield from (bug for bug in re.findall(r'"([^"]+)"', bugs) if bug not in self.strings)
        for script in _SCRIPT.findall(text) if names_scripts else ():
            if f"tests/raft_scripts/{script}" not in self.paths:
                yield script


@pytest.fixture(scope="module")
def tests() -> _Tests:
    return _Tests()


def test_what_comments_cite_exists(tests: _Tests) -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for name in tests.lacks(path.read_text(), names_scripts="raft/core" in str(path))
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("comment", "missing"),
    [
        ("# Test: test_docs", []),
        ("# Test: test_citations::\n    # test_what_comments_cite_exists", []),
        (
            "Tests: test_quorum::test_what_comments_cite_exists",
            ["test_quorum::test_what_comments_cite_exists"],
        ),
        ("# Test: test_that_is_gone", ["test_that_is_gone"]),
        (
            "see `tests/unit/raft` and `tests/unit/raff/test_log.py`.",
            ["tests/unit/raff/test_log.py"],
        ),
        ('Planted bugs: "vote not\n    # durable", "one" and "another one"', ["another one"]),
        ("Scripts: election.txt, gone.txt", ["gone.txt"]),
    ],
)
def test_the_check_for_citations_sees_what_is_gone(
    tests: _Tests, comment: str, missing: list[str]
) -> None:
    assert list(tests.lacks(comment, names_scripts=True)) == missing
