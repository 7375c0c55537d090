"""What HAKeeper sees, told as it changes: phases, stores, and the members of each shard."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from raftwood.base.errors import DeadlineExceeded, RaftwoodError
from raftwood.logservice.client.keeper_client import KeeperClient
from raftwood.logservice.hakeeper.reports import HAKEEPER_SHARD, is_log
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.hakeeper.views import ClusterView, ShardView

_LOOK_S = 0.05
CAUGHT_UP_ENTRIES = HaKeeperSettings().lag_entries
"""So close behind the leader a learner may get a vote."""


class KeeperWatch:
    """Looks again and again; `on_change` hears each change in words."""

    def __init__(self, keeper: KeeperClient, on_change: Callable[[str], None]) -> None:
        self._keeper = keeper
        self._on_change = on_change
        self.view: ClusterView | None = None
        self._is_new = asyncio.Event()

    async def run(self) -> None:
        while True:
            # Without a leader of HAKeeper there is no view; the next look may have one.
            with suppress(RaftwoodError):
                after = await self._keeper.describe()
                for text in changes(self.view, after):
                    self._on_change(text)
                self.view = after
                self._is_new.set()
            await asyncio.sleep(_LOOK_S)

    async def until(
        self, is_met: Callable[[ClusterView], bool], what: str, *, wait_s: float
    ) -> ClusterView:
        """The first view that meets a condition."""
        try:
            async with asyncio.timeout(wait_s):
                while self.view is None or not is_met(self.view):
                    self._is_new.clear()
                    await self._is_new.wait()
                return self.view
        except TimeoutError:
            seen = "nothing" if self.view is None else summary(self.view)
            raise DeadlineExceeded(
                f"after {wait_s:g} s it is still not so that {what}; HAKeeper sees {seen}"
            ) from None


def name_of(shard: ShardView) -> str:
    if shard.shard == HAKEEPER_SHARD:
        return "HAKeeper"
    return f"shard {shard.shard}" if is_log(shard.shard) else f"the {shard.name}"


def summary(view: ClusterView) -> str:
    """All in a line, for when something went wrong."""
    live = [store.store for store in view.stores if store.is_live]
    shards = [
        f"{name_of(shard)} led by {shard.leader} with voters {list(shard.voters)}, learners "
        f"{list(shard.learners)}, lagging {shard.lagging}"
        for shard in view.shards
    ]
    orders = [f"{order.kind} of shard {order.shard}" for order in view.orders]
    alarms = [alarm.text for alarm in view.alarms]
    return f"live stores {live}; {'; '.join(shards)}; orders {orders}; alarms {alarms}"


def changes(before: ClusterView | None, after: ClusterView) -> list[str]:
    """In words; leaders that come and go are left out, they are told by who made them go."""
    told = []
    if before is None or before.phase is not after.phase:
        told.append(f"HAKeeper: {after.phase}" + (f" ({after.reason})" if after.reason else ""))
    if before is None:
        return told
    stores = {store.store: store for store in before.stores}
    for store in after.stores:
        known = stores.get(store.store)
        if known is None:
            told.append(f"HAKeeper hears of store {store.store}")
        elif known.is_live != store.is_live:
            state = "lives again" if store.is_live else "is taken for lost"
            told.append(f"HAKeeper: store {store.store} {state}")
    shards = {shard.shard: shard for shard in before.shards}
    for shard in after.shards:
        if shard.shard in shards:
            told += _member_changes(shards[shard.shard], shard)
    told += [
        f"HAKeeper: {each.kind} of shard {each.shard} by {each.target} failed: {each.error}"
        for each in after.failures
        if each not in before.failures
    ]
    return told


def _member_changes(before: ShardView, after: ShardView) -> list[str]:
    if not before.voters:
        return []
    name, told = name_of(after), []
    for store in after.learners:
        if store not in before.learners:
            told.append(f"{name}: store {store} is a learner")
        if is_caught_up(after, store) and not is_caught_up(before, store):
            lag = after.lagging[store]
            told.append(f"{name}: store {store} has caught up, {lag:,} entries behind the leader")
    gained = [store for store in after.voters if store not in before.voters]
    lost = [store for store in before.voters if store not in (*after.voters, *after.learners)]
    parts = [f"store {store} votes" for store in gained] + [f"store {store} left" for store in lost]
    if parts:
        voters = ", ".join(map(str, after.voters))
        told.append(f"{name}: {', '.join(parts)}; voters are {voters}")
    return told


def is_caught_up(shard: ShardView, store: int) -> bool:
    """Whether the leader says so of a member."""
    return shard.lagging.get(store, CAUGHT_UP_ENTRIES + 1) <= CAUGHT_UP_ENTRIES
