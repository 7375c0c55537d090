"""A client loads no server, and nothing that is an extra, before it is used."""

import subprocess
import sys

import pytest

from raftwood.loghub import client


def _loaded(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        check=True,
        text=True,
    )
    return set(shown.stdout.split())


def test_a_client_loads_no_server_and_no_extra() -> None:
    names = ", ".join(client.__all__)
    loaded = _loaded(f"from raftwood.loghub.client import {names}")
    servers = (
        "raftwood.loghub.server",
        "raftwood.raft",
        "raftwood.metastore",
        "raftwood.server",
        "raftwood.cli",
    )
    extras = ("pyarrow", "numpy", "pandas", "polars")
    assert [name for name in sorted(loaded) if name.startswith(servers)] == []
    assert loaded.isdisjoint(extras)


def test_the_package_alone_loads_nothing_of_itself() -> None:
    loaded = _loaded("import raftwood.loghub.client")
    assert [name for name in loaded if name.startswith("raftwood.loghub.client.")] == []


def test_what_is_not_there_is_said_so() -> None:
    with pytest.raises(AttributeError, match="Consumer"):
        _ = client.Consumer
