"""Where BookKeeper's layouts put ledgers in ZooKeeper."""

import pytest

from raftwood.base.errors import UnsupportedVersion
from raftwood.dlog.bookkeeper.metadata_store import LONG, SHORT, LedgerPaths, children

FACTORY = "org.apache.bookkeeper.meta.%sLedgerManagerFactory:1"


def paths(name: str) -> LedgerPaths:
    return LedgerPaths.parse(b"2\n" + (FACTORY % name).encode())


@pytest.mark.parametrize(
    ("layout", "ledger", "path"),
    [
        ("LongHierarchical", 1, "000/0000/0000/0000/L0001"),
        ("LongHierarchical", (1 << 63) - 1, "922/3372/0368/5477/L5807"),
        ("LegacyHierarchical", 1234567890, "12/3456/L7890"),
        ("Hierarchical", 1234567890, "12/3456/L7890"),
        ("Hierarchical", (1 << 31) - 2, "21/4748/L3646"),
        ("Hierarchical", (1 << 31) - 1, "000/0000/0021/4748/L3647"),
    ],
)
def test_a_ledger_has_its_place(layout: str, ledger: int, path: str) -> None:
    assert paths(layout).path(ledger) == path


def test_an_id_that_the_layout_cannot_hold_is_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="12345678901"):
        paths("LegacyHierarchical").path(12345678901)


@pytest.mark.parametrize(
    "layout", [b"", b"2\n", b"3\n" + (FACTORY % "LongHierarchical").encode(), b"2\nx", b"\xff"]
)
def test_another_layout_is_refused(layout: bytes) -> None:
    with pytest.raises(UnsupportedVersion, match="layout"):
        LedgerPaths.parse(layout)


def test_a_flat_layout_is_refused_by_its_name() -> None:
    with pytest.raises(UnsupportedVersion, match="FlatLedgerManager"):
        paths("Flat")


def test_children_of_the_layout_are_told_from_others() -> None:
    root = ["available", "LAYOUT", "idgen", "00", "000", "01", "002", "cookies", "0a"]
    assert children(root, SHORT) == ["00", "01"]
    assert children(root, LONG) == ["000", "002"]
    assert children(["L0002", "L0001", "0001", "L00001"], SHORT[2:]) == ["L0001", "L0002"]
