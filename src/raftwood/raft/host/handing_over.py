"""Giving leadership up before a store stops, so that nobody has to wait for an election."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from raftwood.base.errors import DeadlineExceeded
from raftwood.raft.host.deadlines import within
from raftwood.raft.host.replica import Replica
from raftwood.raft.host.turns import Turns


async def until(is_true: Callable[[], bool], *, pause_s: float) -> None:
    """Wait for something that nobody tells of."""
    while True:
        if is_true():
            return
        await asyncio.sleep(pause_s)


async def hand_over(
    replicas: Mapping[int, Replica], turns: Turns, *, timeout_ms: int, pause_s: float
) -> None:
    """Let others lead what this store leads, as far as that is done within a time."""
    asked: dict[int, None] = {}
    with suppress(DeadlineExceeded):
        async with within(timeout_ms, "the hand-over"):
            await until(lambda: _is_done(replicas, turns, asked), pause_s=pause_s)


def _is_done(replicas: Mapping[int, Replica], turns: Turns, asked: dict[int, None]) -> bool:
    """Ask others to lead, again if need be: who leads anew waits for a follower's answer."""
    is_done = True
    for group, replica in replicas.items():
        if not replica.is_leader or len(replica.configuration.voters) == 1:
            continue
        successor = replica.best_follower()
        if successor or group not in asked:
            is_done = False
        if successor and not replica.node.raft.transferee:
            asked[group] = None
            replica.wake()
            replica.node.transfer_leadership(successor)
            turns.mark(replica)
    return is_done
