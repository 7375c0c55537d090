"""The metastore on three stores as the program runs them: the same suite as on a folder."""

from tests.kits.metastore.stores_suite import StoresSuite


class TestOnThreeStores(StoresSuite):
    """Nothing is wrong with these stores."""
