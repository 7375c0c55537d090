"""Settings of one raft node, fixed at its start."""

from collections.abc import Callable
from enum import Enum

import msgspec

from raftwood.base.errors import InvalidConfiguration
from raftwood.raft.core.messages import UNLIMITED, is_storage_thread

ElectionJitter = Callable[[int], int]
"""Given the election timeout, extra ticks from zero to below it; the caller's randomness."""


class ReadMode(Enum):
    """How a leader makes sure that it still leads before it answers a read."""

    SAFE = "safe"
    """A round of heartbeats to a quorum (Raft dissertation, section 6.4)."""
    LEASE = "lease"
    """The clock: no messages, but safe only while all clocks run at one pace (section 6.4.1)."""


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One node's identity, timing in ticks, and limits."""

    node: int
    election_ticks: int = 10
    """The leader's silence after which a follower stands; jitter adds up to as much again.

    It must be much longer than a round trip and a sync, or followers would depose leaders that are
    well (Raft, 5.6).
    """
    heartbeat_ticks: int = 1
    election_jitter: ElectionJitter
    applied: int = 0
    """The last index that the state machine holds already; entries after it are applied again."""
    async_storage_writes: bool = False
    message_bytes_max: int = 1 << 20
    """Entries of one append; a single larger entry still goes out alone.

    A follower that lags by gigabytes would else get them in one message, and be silent meanwhile.
    """
    applying_bytes_max: int | None = None
    """Entries handed out to be applied and not back yet; `message_bytes_max` unless given."""
    uncommitted_bytes_max: int = UNLIMITED
    """Payload that a leader holds and has not applied; proposals beyond it are dropped."""
    inflight_messages_max: int = 256
    inflight_bytes_max: int = 0
    """Payload in flight to one follower; zero means no limit."""
    check_quorum: bool = False
    """Whether a leader steps down that hears from no quorum, and nodes that hear a leader ignore
    candidates (dissertation, sections 6.2 and 4.2.3). All nodes of a group need the same value."""
    prevote: bool = False
    """Whether a node asks if it could win before it opens a new term (dissertation, 9.6)."""
    read_mode: ReadMode = ReadMode.SAFE
    proposal_forwarding: bool = True
    """Whether a follower passes proposals on to its leader."""
    change_validation: bool = True
    """Whether a leader refuses membership changes that do not fit its applied configuration."""
    step_down_on_removal: bool = False
    """Whether a leader that is removed or demoted steps down as soon as it has applied that."""

    def __post_init__(self) -> None:
        # Test: test_raw_node::test_settings_that_cannot_work_are_refused
        if self.node <= 0 or is_storage_thread(self.node):
            raise InvalidConfiguration(f"node id {self.node} is reserved")
        if self.heartbeat_ticks <= 0:
            raise InvalidConfiguration("heartbeat_ticks must be above zero")
        # Else followers would stand between two heartbeats of a leader that is well.
        if self.election_ticks <= self.heartbeat_ticks:
            raise InvalidConfiguration("election_ticks must be above heartbeat_ticks")
        if self.inflight_messages_max <= 0:
            raise InvalidConfiguration("inflight_messages_max must be above zero")
        if self.inflight_bytes_max and self.inflight_bytes_max < self.message_bytes_max:
            raise InvalidConfiguration("inflight_bytes_max must hold at least one message")
        # The lease is the promise of followers to elect nobody for an election timeout, which they
        # make under `check_quorum` alone. Without it a leader that is cut off would serve reads
        # from its old state for ever.
        if self.read_mode is ReadMode.LEASE and not self.check_quorum:
            raise InvalidConfiguration("lease reads need check_quorum, which keeps the lease true")
