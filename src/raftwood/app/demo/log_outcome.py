"""How much of the log service's story is played, and what came of it."""

import msgspec

from raftwood.app.demo.log_check import Verdict
from raftwood.app.demo.log_load import Rates
from raftwood.app.demo.story import Step

FAST_SETTINGS = {
    "hakeeper.tick_ms": 100,
    "hakeeper.heartbeat_ms": 200,
    "hakeeper.store_down_ticks": 30,
    "hakeeper.order_ticks": 100,
    "hakeeper.bootstrap_grace_ticks": 200,
    "hakeeper.bootstrap_ticks": 600,
    "hakeeper.leaderless_ticks": 100,
    "logservice.truncation_ms": 250,
}
"""With the defaults a store is taken for lost after 30 s, and truncated logs are cut every 5 s."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is played."""

    shards: int
    records: int
    """Appended as fast as it goes, before anything is killed."""
    seconds: float
    """Each part after that lasts so long at the least."""

    def settings(self) -> dict[str, int]:
        """Snapshots are spread over what is appended, so that there is one to cut the log at."""
        per_shard = self.records // self.shards
        return FAST_SETTINGS | {
            "hakeeper.log_shards": self.shards,
            "logservice.snapshot_entries": min(1_000, max(10, per_shard // 10)),
        }


class Truncation(msgspec.Struct, frozen=True):
    """What came of truncating a shard."""

    shard: int
    truncated_lsn: int
    first_lsn: int
    """The first that can be read after it, as the error of a reader says who wants earlier ones."""
    bytes_before: int
    bytes_after: int


class Outcome(msgspec.Struct, frozen=True):
    """All steps, and what the last look found."""

    steps: list[Step]
    seconds: float
    settings: dict[str, int]
    bootstrap_ms: float
    """From the start of the first process until all shards have leaders."""
    full_speed: Rates
    under_faults: Rates
    truncations: list[Truncation]
    loss_pause_ms: float
    """A store is killed → each shard acks again."""
    detection_ms: float
    """A store is killed → HAKeeper takes it for lost."""
    repair_ms: float
    """Another store joins → all shards have three voters that live."""
    failover_ms: dict[int, float]
    """By shard: its leader is killed → the next batch begun after that is acked."""
    catch_up_ms: float
    """The killed leader is started again → it has what the leaders have."""
    longest_pause_ms: float
    records_acked: int
    records_unknown: int
    exit_statuses: dict[int, int]
    """Of the stores that were told to end."""
    verdict: Verdict

    @property
    def held(self) -> bool:
        is_whole = self.verdict.held and self.verdict.acked_found == self.records_acked > 0
        is_cut = all(each.first_lsn == each.truncated_lsn + 1 for each in self.truncations)
        return is_whole and is_cut and not any(self.exit_statuses.values())
