"""`tools/install.py`: uv gets what pip's settings say; a Java in a wheel comes where none is."""

import sys
from pathlib import Path

import pytest
from tools import install
from tools.install import uv_settings

LISTED = """\
:env:.find-links='/one /two'
:env:.timeout='60'
global.cert='/certificates.pem'
global.index-url='https://global.test/simple'
install.index-url='https://install.test/simple'
"""


def test_uv_takes_packages_from_where_pip_does() -> None:
    assert uv_settings(LISTED, {}) == {
        "UV_FIND_LINKS": "/one,/two",
        "UV_DEFAULT_INDEX": "https://install.test/simple",
        "SSL_CERT_FILE": "/certificates.pem",
    }


def test_what_uv_was_told_by_the_user_counts() -> None:
    given = {"UV_DEFAULT_INDEX": "https://mine.test/simple", "SSL_CERT_FILE": "/mine.pem"}
    assert uv_settings(LISTED, given) == {"UV_FIND_LINKS": "/one,/two"}


def test_nothing_is_told_where_pip_has_no_settings() -> None:
    assert uv_settings("", {}) == {}


@pytest.mark.parametrize(("version", "will_do"), [("17.0.1", True), ("11.0.2", False)])
def test_a_java_in_a_wheel_is_for_machines_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, will_do: bool
) -> None:
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert install.has_java() == will_do
