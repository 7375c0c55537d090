"""Every value that a logstore ever has in the metastore, checked as it is applied."""

from collections.abc import Callable

import msgspec

from raftwood.loghub.model import Logstore, Shard, ShardStatus
from raftwood.loghub.server.metadata import LOGSTORES
from raftwood.loghub.shards import covers_all
from raftwood.metastore.state_machine import MetaStateMachine

_decode = msgspec.json.Decoder(Logstore).decode
_LIFE = tuple(ShardStatus)
_WRITABLE = (ShardStatus.READWRITE, ShardStatus.SEALING)


class MetadataWatch:
    """Shared by the replicas of the metastore; `breaks` is told what may not be."""

    def __init__(self, breaks: Callable[[str], None]) -> None:
        self._breaks = breaks
        self._versions: dict[str, int] = {}
        self._values: dict[str, Logstore] = {}
        self._ends: dict[str, str] = {}
        """By log."""
        self._logs: dict[str, str] = {}
        """The key of the logstore that a log was made for."""
        self.changes = 0

    def machine(self) -> MetaStateMachine:
        """A replica that tells of each change."""
        return _WatchedMachine(self)

    @property
    def logstores(self) -> list[Logstore]:
        return list(self._values.values())

    def saw(self, key: str, value: bytes | None, version: int) -> None:
        if version <= self._versions.get(key, 0):
            return  # another replica was faster
        self._versions[key] = version
        self.changes += 1
        before = self._values.pop(key, None)
        if value is None:
            if before is not None and not before.is_deleting:
                self._breaks(f"{key} went away without having been deleted: {before}")
            return
        after = self._values[key] = _decode(value)
        self._check_value(key, after)
        if before is not None:
            self._check_step(key, before, after)

    def _check_value(self, key: str, logstore: Logstore) -> None:
        shards = {each.id: each for each in logstore.shards}
        if len(shards) != len(logstore.shards) or any(
            each >= logstore.next_shard for each in shards
        ):
            self._breaks(f"{key} has numbers of shards that are not its own: {logstore}")
        writable = [each for each in logstore.shards if each.status in _WRITABLE]
        if writable and not covers_all([(each.begin, each.end) for each in writable]):
            self._breaks(f"writable shards of {key} do not cover all keys: {logstore}")
        for shard in logstore.shards:
            if self._logs.setdefault(shard.log, key) != key:
                self._breaks(f"log {shard.log} of {key} is another's as well")
            if (shard.end_position is not None) != (shard.status in _LIFE[3:]):
                self._breaks(f"a shard of {key} has an end, or none, too early: {shard}")
            self._check_parents(key, shard, shards)

    def _check_parents(self, key: str, shard: Shard, shards: dict[int, Shard]) -> None:
        parents = [shards[each] for each in shard.parents if each in shards]
        if shard.status is not ShardStatus.CREATING:
            for parent in parents:
                if parent.status not in _LIFE[3:]:
                    self._breaks(f"{key}: {shard} is written before its parent has ended: {parent}")

    def _check_step(self, key: str, before: Logstore, after: Logstore) -> None:
        if before.is_deleting and not after.is_deleting:
            self._breaks(f"{key} was deleted, and is there again: {after}")
        known = {each.id: each for each in before.shards}
        for shard in after.shards:
            old = known.get(shard.id)
            if old is None:
                if shard.id < before.next_shard:
                    self._breaks(f"{key}: a number is used again: {shard}")
                continue
            if _LIFE.index(shard.status) < _LIFE.index(old.status) or old.log != shard.log:
                self._breaks(f"{key}: a shard went back from {old} to {shard}")
            if (old.begin, old.end, old.parents) != (shard.begin, shard.end, shard.parents):
                self._breaks(f"{key}: a shard became another one: {old} to {shard}")
            if old.end_position not in (None, shard.end_position):
                self._breaks(f"{key}: the end of a shard has moved: {old} to {shard}")


class _WatchedMachine(MetaStateMachine):
    def __init__(self, watch: MetadataWatch) -> None:
        super().__init__()
        self._watch = watch

    def _apply(self, payload: bytes) -> bytes:
        before = self._state.version
        result = super()._apply(payload)
        changed = []
        for key, step in reversed(self._state._steps.items()):
            if step.version <= before:
                break
            changed.append((key, step))
        for key, step in reversed(changed):
            if key.startswith(LOGSTORES):
                self._watch.saw(key, step.value, step.version)
        return result
