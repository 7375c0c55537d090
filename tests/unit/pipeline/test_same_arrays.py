"""Arrays that record batches share are those that each would have made by itself."""

import pyarrow
import pytest

from raftwood.pipeline import record_batches
from raftwood.pipeline.columns import ARROW_TYPES, Column
from raftwood.pipeline.record_batches import map_array, repeated, repeated_names, steps

STRING = pyarrow.string()


@pytest.mark.parametrize("counts", [(3, 5, 2), (0, 1, 0)])
def test_arrays_are_cut_and_grow_as_batches_do(counts: tuple[int, ...]) -> None:
    for count in counts:
        assert repeated("web", STRING, count).to_pylist() == ["web"] * count
        assert repeated(7, pyarrow.int32(), count).to_pylist() == [7] * count
        assert steps(2, count).to_pylist() == list(range(0, 2 * count, 2))
        assert repeated_names(("a", "b"), count).to_pylist() == ["a", "b"] * count


def test_a_type_is_not_taken_for_a_name_that_reads_the_same() -> None:
    assert repeated("a", STRING, 2).to_pylist() == ["a", "a"]
    assert repeated_names(("a", "string"), 1).to_pylist() == ["a", "string"]


def test_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[object, object] = {}
    monkeypatch.setattr(record_batches, "_arrays", kept)
    for number in range(200):
        repeated(f"topic {number}", STRING, 10)
    assert len(kept) <= 64
    kept.clear()
    assert len(repeated("x" * 1000, STRING, 2000)) == 2000
    assert not kept


def test_maps_have_the_keys_that_a_record_has() -> None:
    one, two = pyarrow.array(["1", "2"]), pyarrow.array(["x", None])
    kind = ARROW_TYPES[Column.CONTENTS]
    assert map_array([], 2, kind).to_pylist() == [[], []]
    assert map_array([("a", one)], 2, kind).to_pylist() == [[("a", "1")], [("a", "2")]]
    both = map_array([("a", one), ("b", one)], 2, kind).to_pylist()
    assert both == [[("a", "1"), ("b", "1")], [("a", "2"), ("b", "2")]]
    some = map_array([("a", one), ("b", two)], 2, kind).to_pylist()
    assert some == [[("a", "1"), ("b", "x")], [("a", "2")]]
