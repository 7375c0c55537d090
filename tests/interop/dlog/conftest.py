"""BookKeeper's Java client on the bookies that all tests of a process share."""

from collections.abc import Iterator

import pytest

from tests.bookkeeper_cluster import BookKeeperCluster
from tests.interop.dlog.java_ledgers import JavaLedgers


@pytest.fixture(scope="session")
def java(bookkeeper: BookKeeperCluster) -> Iterator[JavaLedgers]:
    with JavaLedgers(bookkeeper.address) as client:
        yield client
