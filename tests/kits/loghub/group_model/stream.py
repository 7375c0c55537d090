"""A logstore whose shards are split, merged and deleted, and how far a group read them."""

import random

from raftwood.loghub.model import Logstore, Shard, ShardStatus
from raftwood.loghub.shards import (
    begin_delete,
    begin_merge,
    begin_split,
    finish_creation,
    finish_delete,
    finish_hand_overs,
    with_first_shards,
)

SHARDS_MAX = 24
LENGTH_MAX = 4


class Stream:
    """The truth of it; gateways see it as it is, or as it was."""

    def __init__(self, source: random.Random, *, shards: int, empty: float) -> None:
        self._random = source
        self._empty = empty
        new = Logstore(project="p", name="s")
        self.versions = [finish_creation(with_first_shards(new, ["x"] * shards, now_s=0))]
        self.ever: dict[int, Shard] = {each.id: each for each in self.now.shards}
        self.read_to: dict[int, int] = {}

    @property
    def now(self) -> Logstore:
        return self.versions[-1]

    def _set(self, logstore: Logstore) -> None:
        self.versions.append(logstore)
        del self.versions[:-20]
        for shard in logstore.shards:
            self.ever[shard.id] = shard

    def split(self) -> None:
        shard = self._choose(ShardStatus.READWRITE)
        if shard is not None and len(self.now.shards) < SHARDS_MAX:
            self._set(begin_split(self.now, shard.id, None, ("x", "x"), now_s=0))

    def merge(self) -> None:
        shard = self._choose(ShardStatus.READWRITE)
        if shard is None or len(self.now.shards) >= SHARDS_MAX:
            return
        follows = [
            each
            for each in self.now.shards
            if each.begin == shard.end and each.status is ShardStatus.READWRITE
        ]
        if follows:
            self._set(begin_merge(self.now, shard.id, "x", now_s=0))

    def hand_over(self) -> None:
        """What is sealing ends; what is being deleted goes."""
        ends = {
            each.id: 0 if self._random.random() < self._empty else LENGTH_MAX
            for each in self.now.shards
            if each.status is ShardStatus.SEALING
        }
        gone = [each.id for each in self.now.shards if each.status is ShardStatus.DELETING]
        if ends or gone:
            self._set(finish_delete(finish_hand_overs(self.now, ends), gone))

    def delete_shard(self) -> None:
        shard = self._choose(ShardStatus.READONLY)
        if shard is not None:
            self._set(begin_delete(self.now, shard.id))

    def _choose(self, status: ShardStatus) -> Shard | None:
        found = [each for each in self.now.shards if each.status is status]
        return self._random.choice(found) if found else None

    def read(self, number: int) -> None:
        shard = self.now.shard(number)
        if shard is not None and shard.status is not ShardStatus.DELETING:
            end = LENGTH_MAX if shard.end_position is None else int(shard.end_position)
            self.read_to[number] = min(end, self.read_to.get(number, 0) + 1)

    def is_over(self, shard: Shard) -> bool:
        return shard.end_position is not None and self.read_to.get(shard.id, 0) >= int(
            shard.end_position
        )

    def over(self, view: Logstore) -> list[int]:
        """As a gateway finds it that sees the shards so."""
        return [each.id for each in view.shards if self.is_over(each)]

    def unread_ancestors(self, number: int) -> list[int]:
        """Found by the parents of parents, deleted ones too; not as the rules do."""
        shard, found, left = self.ever[number], list[int](), [number]
        seen: set[int] = set()
        while left:
            for parent in self.ever[left.pop()].parents:
                if parent not in seen:
                    seen.add(parent)
                    left.append(parent)
                older, there = self.ever[parent], self.now.shard(parent)
                shares_keys = max(older.begin, shard.begin) < min(older.end, shard.end)
                is_there = there is not None and there.status is not ShardStatus.DELETING
                if shares_keys and is_there and not self.is_over(older):
                    found.append(parent)
        return found
