"""Crash images of a bookie, and mutants that they must catch."""

from collections.abc import Iterable
from typing import Any

import pytest

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.dlog.bookie import bookie
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.ledger_descriptor import EntryIndex, LedgerNote, encode_note
from tests.kits.disk.images import ForgetfulFiles
from tests.kits.dlog.images import BookieImages
from tests.kits.floors import IMAGES, SHARES
from tests.kits.models import Mutant, replaced


@pytest.mark.parametrize("seed", range(SHARES))
def test_a_bookie_comes_back_from_every_crash_image(seed: int) -> None:
    assert BookieImages(seed).check(limit=IMAGES // SHARES) == IMAGES // SHARES


class _NoSync(ForgetfulFiles):
    @staticmethod
    def forgotten(operation: Operation) -> bool:
        return isinstance(operation, seam.DataSync) and operation.path.endswith(".segment")


_of_arrivals = EntryIndex.of_arrivals.__func__  # type: ignore[attr-defined]


def _in_their_order(index: type[EntryIndex], entries: Iterable[int]) -> Any:
    return _of_arrivals(index, sorted(entries))


def _check(seed: int) -> None:
    BookieImages(seed).check(limit=150)


LOST = "lacks what was acked"
MUTANTS = {
    "entries are not synced": Mutant(
        lambda seed: BookieImages(seed, _NoSync).check(limit=150), harm=LOST
    ),
    "an ack comes before the sync": Mutant(
        _check, replaced(Bookie, when_durable=lambda _, done: done()), harm=LOST
    ),
    "a fence is forgotten": Mutant(
        _check,
        replaced(
            bookie, encode_note=lambda note: encode_note(LedgerNote(master_key=note.master_key))
        ),
        harm=LOST,
    ),
    "arrivals are taken for entries": Mutant(
        _check, replaced(EntryIndex, of_arrivals=classmethod(_in_their_order)), harm=LOST
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    MUTANTS[name].catch()
