"""Lines on their way, as whoever gave them sees it."""

import pytest

from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.clogs.client.batch_builder import LineDelivery
from raftwood.clogs.errors import LinesDropped


def test_all_lines_have_an_outcome_before_it_is_done_and_the_first_error_counts() -> None:
    delivery = LineDelivery(3)
    told: list[str] = []
    delivery.when_done(lambda: told.append("before"))
    delivery.settle(1, None)
    with pytest.raises(InvalidInput, match="still under way"):
        delivery.result()
    delivery.settle(1, LinesDropped("first"))
    delivery.settle(1, Unavailable("second"))
    assert delivery.is_done
    delivery.when_done(lambda: told.append("after"))
    assert told == ["before", "after"]
    with pytest.raises(LinesDropped, match="first"):
        delivery.result()
    with pytest.raises(LinesDropped, match="first"):
        delivery.wait(0)
