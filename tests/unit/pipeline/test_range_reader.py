"""Reading a range where its log does not answer as planned."""

from concurrent.futures import Future
from typing import Any, cast

import pytest

from raftwood.base.errors import Unavailable
from raftwood.base.position import Position
from raftwood.loghub.wire import Pulled
from raftwood.pipeline.columns import projection_for, wanted_columns
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.offsets import ShardRange
from raftwood.pipeline.options import SourceOptions, StreamAccess
from raftwood.pipeline.range_reader import read_range

MESSAGE = projection_for(wanted_columns(["message"]))


class _Silent:
    """Has nothing, for so many pulls; then it has gone on."""

    def __init__(self, silent: int) -> None:
        self.left = silent
        self.pulls = 0

    def begin_pull(self, shard: int, start: Position, *, bytes_max: int) -> "Future[Pulled]":
        assert (shard, bytes_max > 0) == (0, True)
        self.pulls += 1
        self.left -= 1
        following = start if self.left >= 0 else Position(9)
        future: Future[Pulled] = Future()
        future.set_result(Pulled([], following, start, is_ended=False))
        return future


def read(hub: _Silent) -> list[Any]:
    access = StreamAccess(
        gateways=("h:1",),
        access_key="k",
        access_secret="s",
        project="p",
        logstore="s",
        timeout_ms=200,
    )
    wanted = ShardRange(0, Position(3), Position(9))
    return list(read_range(SourceOptions(access=access), MESSAGE, wanted, cast("Hub", hub)))


def test_a_log_that_has_less_than_was_planned_is_waited_for_and_not_for_ever() -> None:
    late = _Silent(2)
    assert read(late) == []
    assert late.pulls == 3
    never = _Silent(1 << 30)
    with pytest.raises(Unavailable, match="nothing at position 3, and was to be read up to 9"):
        read(never)
    assert never.pulls < 10
