"""Our formats are parsed by the lowest versions of libraries that a user may have.

All other tests run with the newest, which `constraints.txt` has.
"""

import os
import subprocess
import sys

import pytest

from tests.kits.install.lowest_versions import LIBRARIES, REPOSITORY, install, lowest

TESTS = (
    "tests/unit/base/test_configuration.py",
    "tests/unit/dlog/bookkeeper/test_metadata_format.py",
    "tests/unit/dlog/bookkeeper/test_wire.py",
    "tests/unit/loghub/client/test_group_rows.py",
    "tests/unit/base/test_log_group_codec.py",
    "tests/unit/loghub/test_arrow_batches.py",
    "tests/unit/loghub/ways_in/test_records.py",
)
"""Those of what is encoded and decoded."""
SHOWN = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
TEST_S_MAX = 500.0


@pytest.mark.needs("lowest_versions")
@pytest.mark.timeout(600)
def test_our_formats_are_parsed_by_the_lowest_versions_that_are_allowed() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(install()), str(REPOSITORY)])}
    shown = run(environment, "-c", SHOWN, *LIBRARIES)
    assert [complete(each) for each in shown.split()] == list(map(complete, lowest().values()))
    passed = run(environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)
    assert " passed" in passed


def complete(version: str) -> list[str]:
    """As three numbers: 20 is 20.0.0."""
    return [*version.split("."), "0", "0"][:3]


def run(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        (sys.executable, *arguments),
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TEST_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout
