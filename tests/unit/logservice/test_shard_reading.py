"""Reading while the log changes below: an error tells whether to try again, or that it is gone."""

import asyncio
from contextlib import nullcontext
from typing import Any, cast

import pytest

from raftwood.base.errors import OutOfRange, Unavailable
from raftwood.logservice.errors import LsnTruncated
from raftwood.logservice.log_rules import LogShardState
from raftwood.logservice.server.shard_service import read_shard
from raftwood.logservice.wire import ReadRequest
from raftwood.raft.node_host import NodeHost


class _ChangingHost:
    """Its log is replaced between the question what can be read and the reading."""

    def __init__(self, truncated_meanwhile: int) -> None:
        self.state = LogShardState()
        self._truncated_meanwhile = truncated_meanwhile

    async def read(self, _: int, query: Any, *, timeout_ms: int) -> Any:
        assert timeout_ms
        return query(self.state)

    def applied(self, _: int) -> int:
        return 100

    async def read_log(self, _: int, first_index: int, *, bytes_max: int) -> Any:
        assert bytes_max
        self.state.truncated = self._truncated_meanwhile
        raise OutOfRange(f"group 1 holds entries 301 to 100 here, not {first_index}")

    def stale_read(self, _: int, query: Any) -> Any:
        return query(self.state)


@pytest.mark.parametrize(("truncated", "error"), [(0, Unavailable), (60, LsnTruncated)])
def test_a_log_that_is_replaced_as_it_is_read_is_read_again_unless_it_was_truncated(
    truncated: int, error: type[Exception]
) -> None:
    host = cast("NodeHost", _ChangingHost(truncated))
    with pytest.raises(error):
        asyncio.run(
            read_shard(host, ReadRequest(1, 50, 1000), nullcontext, bytes_max=1000, timeout_ms=1000)
        )
