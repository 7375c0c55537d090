"""What the tests of a file share: one `raftwood standalone`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kits.dlog.command_kit import Commands
from tests.kits.server.running import standalone


@pytest.fixture(scope="module")
def parts(module_folder: Path) -> Iterator[dict[str, Any]]:
    """Whoever makes something in it gives it a name of its own."""
    with standalone(module_folder) as served:
        yield served


@pytest.fixture(scope="module")
def operator(parts: dict[str, Any]) -> Commands:
    service = parts["logservice"]
    return Commands(f"--connect={service['address']}", f"--config={service['config']}")
