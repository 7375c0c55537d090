"""Health of a ring's servers: ping/pong checks as pure rules, events in, actions out.

    health = Health(configuration, now)
    for action in health.tick(now): ...     # at `health.due`, and `sent` with every batch
    health.pong(server, pong_id, now)       # whatever comes; what is not valid changes nothing
    ring = health.live()                    # after each `Isolate`, `Recover` and `configure`

The checks are those of clogs' text, section "High availability". A check is the time from one ping
to the next. A server that lets `invalid_checks_max` of them in a row pass without a valid pong,
which is the id of the ping under way + 1, is isolated. It is still pinged, and comes back with a
valid pong once its time is over; that time doubles with each repeat. The text brings a server back
with its first pong: one that answers now and then would leave and come, and with each change its
files move to other servers and back (planted bugs "the time in isolation does not grow" and "the
time in isolation is not waited for" in `tests/kits/clogs/health_model/mutants.py`).

- Where the share of servers that may be isolated is used up, a server stays, and is looked at again
  with its next check. A switch that fails takes half of the servers away from one client; if it
  isolated all of these, the other half would get their load (planted bug "the limit of isolations
  is ignored"). Where all are isolated the ring is full again: to try any is better than to try none
  (panic mode; planted bug "all isolated drops the ring").
- `now` is one clock's, in seconds, that never goes back. It may leap: a process that was stopped
  for minutes finds all its checks overdue and pongs that it has not read yet. A check that is found
  much too late is put off once instead, and then counted once: a laptop that wakes up would else
  count every gap that it slept through, and isolate all servers before it has read a pong
  (`test_a_pause_of_minutes_isolates_nobody_and_counts_one_check`; planted bugs "a pause counts as
  many checks" and "a pause leaves pongs no time").
- A lost connection counts as one failed check at the next one, for the pong cannot come any more;
  alone it isolates no server: a receiver that restarts is back in a second (planted bug "a
  connection
  that is lost isolates").
"""

import heapq
import math
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from raftwood.clogs.configuration import HaRules, RingConfiguration


class Ping(msgspec.Struct, frozen=True, gc=False):
    """Send a ping with this id on the server's data connection; it may get lost."""

    server: str
    ping_id: int


class Isolate(msgspec.Struct, frozen=True, gc=False):
    """The server leaves the ring: build it anew from `live()`, and route its batches again."""

    server: str


class Recover(msgspec.Struct, frozen=True, gc=False):
    """The server is back in the ring: build it anew from `live()`."""

    server: str


Action: TypeAlias = Ping | Isolate | Recover


class CheckState(StrEnum):
    """The state of a server's check; the text's two."""

    PING = "ping"
    """A ping is under way."""
    PONG = "pong"
    """The last ping was answered, or none was sent yet."""


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of one server, to be shown and counted. Times are of the driver's clock."""

    server: str
    state: CheckState
    invalid_checks: int
    """Failed checks in a row, up to now."""
    isolated_since: float | None = None
    isolated_until: float | None = None
    """The earliest end of the isolation."""
    repeats: int = 0
    """How often it was isolated, less what healthy times have made up for."""
    round_trip_s: float | None = None
    """The round trip of the last valid pong."""

    @property
    def is_isolated(self) -> bool:
        return self.isolated_since is not None


_REPEATS_MAX = 32
"""More doublings than this are longer than any isolation."""
_REST_SHARE = 0.5
"""The share of the gap that a pong has at the least when a check is put off."""


class ServerCheck:
    """The counts of one server; `Health` decides."""

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
        """Its place in the gap, from 0 to 1, so that not all servers are pinged at once."""
        self.ping_id = ping_id
        self.pinged_at = now
        self.is_awaiting = False
        self.is_lost = False
        """Its connection was lost since the last check or the last valid pong."""
        self.is_put_off = False
        self.invalid_checks = 0
        self.isolated_since: float | None = None
        self.repeats = 0
        """How often it was isolated, as of `healthy_since`."""
        self.healthy_since = now
        self.valid_at = now
        """When a valid pong was taken last."""
        self.round_trip_s: float | None = None
        self.next_check = now
        self.wake = math.inf
        """When its next check, or the end of its isolation, is due."""

    def isolated_until(self, rules: HaRules) -> float | None:
        """Returns the end by the present rules: a shorter time also ends present isolations."""
        if self.isolated_since is None:
            return None
        grown_ms = rules.isolation_first_ms << (self.repeats - 1)
        return self.isolated_since + min(grown_ms, rules.isolation_longest_ms) / 1000

    def may_recover(self, rules: HaRules, now: float) -> bool:
        """Whether it has answered its last check and its time in isolation is over.

        Both: a pong of half an hour ago does not bring back a server that is silent now
        (`test_a_server_that_answered_too_early_and_no_more_stays_isolated`).
        """
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
        """Whether a pong answers the ping under way; any other changes nothing.

        Ids go up by two and a pong is one above its ping, as in the text: a late pong, one that the
        network doubled, and a ping that was reflected all differ from the right one (planted bugs
        "a pong of an old ping is accepted" and "a doubled pong is taken again").
        """
        if not self.is_awaiting or pong_id != self.ping_id + 1:
            return False
        self.is_awaiting = False
        self.is_lost = False
        self.invalid_checks = 0
        self.round_trip_s = max(0.0, now - self.pinged_at)
        self.valid_at = now
        return True

    def faded_repeats(self, rules: HaRules) -> int:
        """Returns the repeats that are left: a healthy time of the longest isolation offsets one.

        Without that, a server that failed five times last year would be isolated for the longest
        time at its next failure (planted bug "the time in isolation does not fade"). Healthy time
        ends with the last valid pong: a server that is silent is not healthy, though it is not
        isolated yet.
        """
        healthy_s = self.valid_at - self.healthy_since
        if self.isolated_since is not None or healthy_s <= 0:
            return self.repeats
        longest_s = rules.isolation_longest_ms / 1000
        return max(0, self.repeats - int(healthy_s / longest_s)) if longest_s else 0

    def put_off(self, gap_s: float, now: float) -> None:
        """Puts the check off to the server's own place in the gap."""
        self.is_put_off = True
        self.next_check = now + gap_s * (_REST_SHARE + self.phase)

    def hasten(self, gap_s: float, now: float) -> None:
        """The gap has changed: makes the check no later than the new gap requires."""
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


_LATE_SHARE: Final = 0.25
"""The share of the gap: a check that is found later than this is put off."""


class Health:
    """The health of all servers of one ring, by their ring names."""

    def __init__(
        self, configuration: RingConfiguration, now: float, *, first_ping_id: int = 0
    ) -> None:
        """`first_ping_id` is drawn by the driver, so that no pong for an earlier process, nor one
        that is guessed, is valid."""
        self._rules = configuration.ha
        self._servers: dict[str, ServerCheck] = {}
        self._highest_ping_id = first_ping_id
        self._pushes = 0
        self._isolated_count = 0
        self._live: tuple[str, ...] | None = None
        self._wakes: list[tuple[float, int, ServerCheck]] = []
        self.configure(configuration, now)

    def live(self) -> tuple[str, ...]:
        """Returns the ring's servers, in the configuration's order: those not isolated, or all."""
        if self._live is None:
            servers = self._servers.values()
            live = tuple(each.name for each in servers if each.isolated_since is None)
            self._live = live or tuple(self._servers)
        return self._live

    @property
    def is_panic(self) -> bool:
        """Whether all servers are isolated, and therefore used."""
        return 0 < self._isolated_count == len(self._servers)

    @property
    def due(self) -> float:
        """Returns when `tick` must be called next."""
        wakes = self._wakes
        while wakes and wakes[0][2].wake != wakes[0][0]:
            heapq.heappop(wakes)
        return wakes[0][0] if wakes else math.inf

    def snapshot(self) -> tuple[ServerHealth, ...]:
        return tuple(each.health(self._rules) for each in self._servers.values())

    def sent(self, name: str, now: float) -> list[Action]:
        """Something is sent to the server: makes its check if it is due, as in the text, where the
        sender's calls alone drive the checks."""
        server = self._servers.get(name)
        if server is None or now < server.wake:
            return []
        return self._work(server, now)

    def tick(self, now: float) -> list[Action]:
        """Makes the checks that are due, also where nothing is sent: the text's client finds out
        that a server is dead when it next has something for it.
        """
        if now < self.due:
            return []
        actions: list[Action] = []
        while self.due <= now:
            actions += self._work(self._wakes[0][2], now)
        return actions

    def pong(self, name: str, pong_id: int, now: float) -> list[Action]:
        """Takes a pong; late, doubled and forged ones change nothing."""
        server = self._servers.get(name)
        if server is None or not server.take_pong(pong_id, now):
            return []
        actions = self._recovered(server, now)
        self._set_wake(server)
        return actions

    def connection_lost(self, name: str, now: float) -> list[Action]:
        """The server's data connection ended; makes its check if it is due."""
        server = self._servers.get(name)
        if server is None:
            return []
        server.is_lost = True
        self._set_wake(server)
        return self.sent(name, now)

    def configure(self, configuration: RingConfiguration, now: float) -> list[Action]:
        """Takes other servers, or other rules; a server that stays keeps its state.

        A new version of the configuration, for one new server, must not let all isolated ones back
        at once (planted bug "a reload forgets state").
        """
        before, known = self._rules, self._servers
        self._rules = configuration.ha
        self._servers = {}
        count = len(configuration.servers)
        for index, each in enumerate(configuration.servers):
            name = each.ring_name
            server = known.pop(name, None) or self._added(name, index / count, now)
            server.phase = index / count
            if self._rules.check_gap_ms != before.check_gap_ms:
                server.hasten(self._gap_s, now)
            self._servers[name] = server
            self._set_wake(server)
        for gone in known.values():
            gone.wake = math.inf
        self._isolated_count = sum(
            each.isolated_since is not None for each in self._servers.values()
        )
        self._live = None
        return self._released(now)

    @property
    def _gap_s(self) -> float:
        return self._rules.check_gap_ms / 1000

    def _added(self, name: str, phase: float, now: float) -> ServerCheck:
        # Its ids go on behind all others: a server that was removed and comes back must not take a
        # pong for a ping of its earlier time (planted bug "a server that comes back has its old
        # ids").
        server = ServerCheck(name, ping_id=self._highest_ping_id, now=now)
        server.next_check = now + self._gap_s * phase
        return server

    def _isolated_max(self) -> int:
        """How many may be isolated: one at the least, since 10 % of a ring of three is none and a
        dead server would stay for ever
        (`test_no_more_than_a_share_is_isolated_but_always_one`)."""
        return max(1, len(self._servers) * self._rules.isolated_percent_max // 100)

    def _released(self, now: float) -> list[Action]:
        """Takes servers back where more are isolated than may be: those that answered last come
        first (planted bug "a reload leaves too many isolated")."""
        excess = self._isolated_count - self._isolated_max()
        if excess <= 0:
            return []
        isolated = [each for each in self._servers.values() if each.isolated_since is not None]
        isolated.sort(key=lambda each: (each.invalid_checks, each.isolated_since))
        actions: list[Action] = []
        for server in isolated[:excess]:
            actions.append(self._recover(server, now))
            self._set_wake(server)
        return actions

    def _work(self, server: ServerCheck, now: float) -> list[Action]:
        """Does what is due at a server's `wake`."""
        actions = self._recovered(server, now)
        if server.next_check <= now:
            actions += self._checked(server, now)
        self._set_wake(server)
        return actions

    def _recovered(self, server: ServerCheck, now: float) -> list[Action]:
        return [self._recover(server, now)] if server.may_recover(self._rules, now) else []

    def _recover(self, server: ServerCheck, now: float) -> Action:
        server.recover(now)
        self._isolated_count -= 1
        self._live = None
        return Recover(server.name)

    def _checked(self, server: ServerCheck, now: float) -> list[Action]:
        gap_s = self._gap_s
        is_late = now - server.next_check > gap_s * _LATE_SHARE
        if is_late and not server.is_put_off:
            server.put_off(gap_s, now)
            return []
        actions = self._judged(server, now)
        server.is_put_off = False
        # From the time at which it was due, so that servers keep their distances, and each pong has
        # a whole gap of time.
        server.next_check = (now if is_late else server.next_check) + gap_s
        ping_id = server.ping(now)
        self._highest_ping_id = max(self._highest_ping_id, ping_id)
        actions.append(Ping(server.name, ping_id))
        return actions

    def _judged(self, server: ServerCheck, now: float) -> list[Action]:
        if not server.is_awaiting and not server.is_lost:
            return []
        server.invalid_checks += 1
        server.is_lost = False
        if (
            not server.is_awaiting  # The pong came, and then the connection was lost.
            or server.isolated_since is not None
            or server.invalid_checks < self._rules.invalid_checks_max
            or self._isolated_count >= self._isolated_max()
        ):
            return []
        server.isolate(self._rules, now)
        self._isolated_count += 1
        self._live = None
        return [Isolate(server.name)]

    def _set_wake(self, server: ServerCheck) -> None:
        wake = server.next_check
        until = server.isolated_until(self._rules)
        if until is not None and server.is_well:
            wake = min(wake, until)
        if wake == server.wake:
            return
        server.wake = wake
        self._pushes += 1
        heapq.heappush(self._wakes, (wake, self._pushes, server))
        if len(self._wakes) > 4 * len(self._servers) + 16:
            # Entries for earlier wakes are passed over; they must not pile up.
            self._wakes = [entry for entry in self._wakes if entry[2].wake == entry[0]]
            heapq.heapify(self._wakes)
