"""5,000 crash images of a bookie, and mutants that they must catch."""

from collections.abc import Callable

import pytest

from raftwood.base import files as seam
from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Operation
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.entry_index import EntryIndex
from raftwood.dlog.bookie.held_ledger import LedgerNote, encode_note
from tests.kits.disk.images import Broken, ForgetfulFiles
from tests.kits.dlog.images import BookieImages

IMAGES = 5_000
SHARES = 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SHARES))
def test_a_bookie_comes_back_from_every_crash_image(seed: int) -> None:
    assert BookieImages(seed).check(limit=IMAGES // SHARES) == IMAGES // SHARES


def _is_caught(make: Callable[[int], BookieImages]) -> None:
    """Some image comes back without what was acked; any other failure proves nothing."""
    others: list[str] = []
    for seed in range(6):
        try:
            make(seed).check(limit=150)
        except (Broken, RaftwoodError) as error:
            if "lacks what was acked" in str(error):
                return
            others.append(str(error))
    pytest.fail(f"no image showed the planted bug; other failures: {others}")


class _NoSync(ForgetfulFiles):
    @staticmethod
    def forgotten(operation: Operation) -> bool:
        return isinstance(operation, seam.DataSync) and operation.path.endswith(".segment")


@pytest.mark.slow
def test_entries_that_are_not_synced_are_caught() -> None:
    _is_caught(lambda seed: BookieImages(seed, _NoSync))


@pytest.mark.slow
def test_an_ack_before_the_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bookie, "when_durable", lambda _, done: done())
    _is_caught(BookieImages)


@pytest.mark.slow
def test_a_forgotten_fence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "raftwood.dlog.bookie.bookie.encode_note",
        lambda note: encode_note(LedgerNote(master_key=note.master_key)),
    )
    _is_caught(BookieImages)


@pytest.mark.slow
def test_arrivals_taken_for_entries_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EntryIndex.of_arrivals.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        EntryIndex,
        "of_arrivals",
        classmethod(lambda cls, entries: original(cls, sorted(entries))),
    )
    _is_caught(BookieImages)
