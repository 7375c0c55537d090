"""BookKeeper's Java client on the bookies that all tests of a run share, and these bookies beside
ours.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.dlog.bookie_processes import BookieProcesses, bookie_processes
from tests.kits.dlog.java_ledgers import JavaLedgers
from tests.kits.dlog.sites import COUNT, BookKeeperSite, EmbeddedSite, ProcessSite, Site
from tests.kits.servers.bookkeeper import BookKeeperCluster
from tests.kits.servers.shared import shared

SITES = (
    "embedded",
    "processes",
    pytest.param("bookkeeper", marks=pytest.mark.needs("bookkeeper")),
)


@pytest.fixture(scope="session")
def java() -> Iterator[JavaLedgers]:
    with JavaLedgers(shared(BookKeeperCluster).address) as client:
        yield client


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookieProcesses]:
    with bookie_processes(tmp_path_factory.mktemp("bookies"), COUNT) as running:
        asyncio.run(running.start())
        yield running


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Four bookies of each kind; whoever breaks one mends it."""
    match request.param:
        case "embedded":
            return EmbeddedSite(tmp_path / "embedded")
        case "processes":
            return ProcessSite(request.getfixturevalue("processes"))
        case _:
            return BookKeeperSite(request.getfixturevalue("breakable_bookkeeper"))
