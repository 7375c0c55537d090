"""What tests of several files share: one `raftwood standalone` for all of a process."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kits.app.running import standalone
from tests.kits.dlog.command_kit import Commands


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Whoever makes something in it gives it a name of its own."""
    with standalone(tmp_path_factory.mktemp("standalone")) as served:
        yield served


@pytest.fixture(scope="session")
def operator(parts: dict[str, Any]) -> Commands:
    service = parts["logservice"]
    return Commands(f"--connect={service['address']}", f"--config={service['config']}")
