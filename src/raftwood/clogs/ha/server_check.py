"""What is remembered of one server: its ping under way, failed checks, time in isolation."""

import math

from raftwood.clogs.ha.actions import CheckState, ServerHealth
from raftwood.clogs.model import HaRules

_REPEATS_MAX = 32
"""More doublings than this are longer than any isolation."""
_REST_SHARE = 0.5
"""Of the gap: so much time a pong has at the least when a check is put off."""


class ServerCheck:
    """One server; `Health` decides, this keeps count."""

    __slots__ = (
        "healthy_since",
        "invalid_checks",
        "is_awaiting",
        "is_lost",
        "is_put_off",
        "isolated_since",
        "name",
        "next_check",
        "phase",
        "ping_id",
        "pinged_at",
        "repeats",
        "round_trip_s",
        "valid_at",
        "wake",
    )

    def __init__(self, name: str, *, ping_id: int, now: float) -> None:
        self.name = name
        self.phase = 0.0
        """Its place in the gap, from 0 to 1: so not all are pinged at once."""
        self.ping_id = ping_id
        self.pinged_at = now
        self.is_awaiting = False
        self.is_lost = False
        """Its connection was, since the last check or the last valid pong."""
        self.is_put_off = False
        self.invalid_checks = 0
        self.isolated_since: float | None = None
        self.repeats = 0
        """Times that it was isolated, as of `healthy_since`."""
        self.healthy_since = now
        self.valid_at = now
        """When a valid pong was taken last."""
        self.round_trip_s: float | None = None
        self.next_check = now
        self.wake = math.inf
        """When there is something to do for it."""

    def isolated_until(self, rules: HaRules) -> float | None:
        """By the present rules: a time that was made shorter counts for those isolated already."""
        if self.isolated_since is None:
            return None
        grown_ms = rules.isolation_first_ms << (self.repeats - 1)
        return self.isolated_since + min(grown_ms, rules.isolation_longest_ms) / 1000

    def may_recover(self, rules: HaRules, now: float) -> bool:
        """It has answered its last check, and its time is over."""
        until = self.isolated_until(rules)
        return until is not None and self.is_well and now >= until

    @property
    def is_well(self) -> bool:
        return not self.invalid_checks and not self.is_lost

    def ping(self, now: float) -> int:
        self.ping_id += 2
        self.pinged_at = now
        self.is_awaiting = True
        return self.ping_id

    def take_pong(self, pong_id: int, now: float) -> bool:
        """Whether it answers the ping under way; any other changes nothing."""
        if not self.is_awaiting or pong_id != self.ping_id + 1:
            return False
        self.is_awaiting = False
        self.is_lost = False
        self.invalid_checks = 0
        self.round_trip_s = max(0.0, now - self.pinged_at)
        self.valid_at = now
        return True

    def faded_repeats(self, rules: HaRules) -> int:
        """Each healthy time as long as the longest isolation makes up for one repeat.

        It is counted up to the last valid pong: a server that is silent is not healthy, though it
        is not isolated yet.
        """
        healthy_s = self.valid_at - self.healthy_since
        if self.isolated_since is not None or healthy_s <= 0:
            return self.repeats
        longest_s = rules.isolation_longest_ms / 1000
        return max(0, self.repeats - int(healthy_s / longest_s)) if longest_s else 0

    def put_off(self, gap_s: float, now: float) -> None:
        """The check comes later, at the server's own place in the gap."""
        self.is_put_off = True
        self.next_check = now + gap_s * (_REST_SHARE + self.phase)

    def hasten(self, gap_s: float, now: float) -> None:
        """The gap has become another: the check comes no later than the new one has it."""
        self.next_check = min(self.next_check, now + gap_s * (_REST_SHARE + self.phase))

    def isolate(self, rules: HaRules, now: float) -> None:
        self.repeats = min(self.faded_repeats(rules) + 1, _REPEATS_MAX)
        self.isolated_since = now

    def recover(self, now: float) -> None:
        self.isolated_since = None
        self.healthy_since = now

    def health(self, rules: HaRules) -> ServerHealth:
        return ServerHealth(
            server=self.name,
            state=CheckState.PING if self.is_awaiting else CheckState.PONG,
            invalid_checks=self.invalid_checks,
            isolated_since=self.isolated_since,
            isolated_until=self.isolated_until(rules),
            repeats=self.faded_repeats(rules),
            round_trip_s=self.round_trip_s,
        )
