"""What is promised of servers' health, checked by what goes in and comes out alone."""

from raftwood.clogs.configuration import RingConfiguration
from raftwood.clogs.health import Action, Health, Isolate, Ping
from tests.kits.models import Violation

_TINY_S = 1e-6
"""Of differences between times that were added up in another order."""


class Witness:
    """What was seen of one server."""

    def __init__(self, now: float) -> None:
        self.added_at = now
        self.ping_id: int | None = None
        self.pinged_at = now
        self.gap_s = 0.0
        """The shortest since it was pinged last."""
        self.stalls = 0
        """Before its last ping."""
        self.is_answered = True
        self.is_lost = False
        self.failed = 0
        self.isolated_at: float | None = None
        self.strikes = 0
        self.recovered_at = now
        self.valid_at = now

    def settle(self, longest_s: float) -> None:
        """Healthy time, from the recovery up to the last valid pong, makes up for strikes."""
        left_s = self.valid_at - self.recovered_at
        if longest_s == 0 and left_s > 0:
            self.strikes = 0
        while self.strikes and left_s >= longest_s > 0:
            self.strikes -= 1
            left_s -= longest_s


class Oracle:
    def __init__(self, health: Health, configuration: RingConfiguration, now: float) -> None:
        self._health = health
        self.servers: dict[str, Witness] = {}
        self.isolated: dict[str, Witness] = {}
        self.isolations = self.recoveries = self.panics = self.full = 0
        self._used_ids: dict[str, int] = {}
        self._called_at = self._ticked_at = self._disturbed_at = now
        self._stalls = 0
        """Calls that found the last tick long ago."""
        self._pause_end = now
        self._stalls_before_pause = -1
        self._rules = configuration.ha
        self.gap_s = self._rules.check_gap_ms / 1000
        self.configured(configuration, [], now)

    def called(self, now: float) -> None:
        """Something is about to be told to the machine, after so long."""
        if now - self._called_at >= 2 * self.gap_s:
            self._pause_end = now
            self._stalls_before_pause = self._stalls
        self._called_at = now
        if now - self._ticked_at > 0.2 * self.gap_s:
            self._disturbed_at = now
            self._stalls += 1

    def configured(
        self, configuration: RingConfiguration, actions: list[Action], now: float
    ) -> None:
        self._rules = configuration.ha
        self.gap_s = self._rules.check_gap_ms / 1000
        self._disturbed_at = now
        for witness in self.servers.values():
            witness.gap_s = min(witness.gap_s, self.gap_s)
        known = self.servers
        self.servers = {}
        for server in configuration.servers:
            name = server.ring_name
            self.servers[name] = known.get(name) or Witness(now)
        self.isolated = {
            name: each for name, each in self.servers.items() if each.isolated_at is not None
        }
        excess = max(0, len(self.isolated) - self._isolated_max())
        if len(actions) != excess:
            raise Violation(f"{excess} more are isolated than may be, and {actions} is done")
        for action in actions:
            self._recover(action.server, now)
        self.check_ring()

    def ponged(self, name: str, pong_id: int, actions: list[Action], now: float) -> None:
        witness = self.servers.get(name)
        is_valid = (
            witness is not None
            and witness.ping_id is not None
            and not witness.is_answered
            and pong_id == witness.ping_id + 1
        )
        if not is_valid and actions:
            raise Violation(f"pong {pong_id} of {name} is not valid, and leads to {actions}")
        if witness is not None and is_valid:
            witness.is_answered, witness.is_lost, witness.failed = True, False, 0
            witness.valid_at = now
            self.acted(actions, now)
            self.check_recovered(name, now)

    def lost(self, name: str) -> None:
        witness = self.servers.get(name)
        if witness is not None:
            witness.is_lost = True

    def acted(self, actions: list[Action], now: float) -> None:
        is_other_ring = False
        for action in actions:
            if isinstance(action, Ping):
                self._pinged(action, now)
                continue
            is_other_ring = True
            if isinstance(action, Isolate):
                self._isolate(action.server, now)
            else:
                self._check_recovery(action.server, now)
                self._recover(action.server, now)
        if is_other_ring:
            self.check_ring()

    def ticked(self, now: float) -> None:
        """After a tick: nothing is left to do."""
        self._ticked_at = now
        if self._health.due <= now:
            raise Violation(f"at {now} something is still due at {self._health.due}")
        for name in [*self.isolated]:
            self.check_recovered(name, now)

    def check_recovered(self, name: str, now: float) -> None:
        witness = self.isolated.get(name)
        if (
            witness is not None
            and not witness.failed
            and not witness.is_lost
            and now >= self._until(witness) + _TINY_S
        ):
            raise Violation(f"{name} answers, its time is over, and it is still isolated")

    def check_pings(self) -> None:
        """In quiet times every server is pinged, isolated or not."""
        now = self._called_at
        if now - self._disturbed_at < 3 * self.gap_s:
            return
        for name, witness in self.servers.items():
            if now - max(witness.pinged_at, witness.added_at) > 1.5 * self.gap_s:
                raise Violation(f"{name} was not pinged since {witness.pinged_at}, it is {now}")

    def check_ring(self) -> None:
        live = tuple(name for name in self.servers if name not in self.isolated)
        if self._health.live() != (live or tuple(self.servers)):
            raise Violation(f"the ring has {self._health.live()} where {live} are not isolated")
        if self._health.is_panic is not (not live):
            raise Violation(f"panic mode is {self._health.is_panic} where {live} are not isolated")
        if len(self.isolated) > self._isolated_max():
            raise Violation(f"{len(self.isolated)} of {len(self.servers)} servers are isolated")
        self.panics += not live

    def check_told(self) -> None:
        """What is told of servers is what was seen."""
        for told in self._health.snapshot():
            seen = self.servers[told.server]
            if told.invalid_checks != seen.failed:
                raise Violation(f"{told} where {seen.failed} checks failed")
            if told.isolated_since != seen.isolated_at:
                raise Violation(f"{told} where it was isolated at {seen.isolated_at}")

    def _pinged(self, ping: Ping, now: float) -> None:
        witness = self.servers.get(ping.server)
        if witness is None:
            raise Violation(f"{ping} goes to a server that is not in the ring")
        self._check_id(ping, witness)
        if witness.ping_id is not None:
            self._check_pace(ping, witness, now)
        if not witness.is_answered:
            witness.failed += 1
            self._check_chance(ping, witness, now)
            has_room = len(self.isolated) < self._isolated_max()
            if witness.isolated_at is None and witness.failed >= self._rules.invalid_checks_max:
                if has_room:
                    raise Violation(f"{ping.server} failed {witness.failed} checks, and stays")
                self.full += 1
        elif witness.is_lost:
            witness.failed += 1
        witness.is_answered = witness.is_lost = False
        witness.ping_id, witness.pinged_at, witness.gap_s = ping.ping_id, now, self.gap_s
        witness.stalls = self._stalls
        self._used_ids[ping.server] = ping.ping_id

    def _check_id(self, ping: Ping, witness: Witness) -> None:
        used = self._used_ids.get(ping.server, 0)
        if witness.ping_id is None and ping.ping_id <= used:
            raise Violation(f"{ping} is of an id that the server had when it was here before")
        if witness.ping_id is not None and ping.ping_id != witness.ping_id + 2:
            raise Violation(f"{ping} comes after {witness.ping_id}")

    def _check_pace(self, ping: Ping, witness: Witness, now: float) -> None:
        since_s = now - witness.pinged_at
        if since_s < 0.5 * witness.gap_s - _TINY_S:
            raise Violation(f"{ping} comes {since_s} s after the last one")
        is_quiet = now - self._disturbed_at > 3 * self.gap_s
        if is_quiet and not 0.7 * self.gap_s <= since_s <= 1.3 * self.gap_s:
            raise Violation(f"{ping} comes {since_s} s after the last one, in quiet times")

    def _check_chance(self, ping: Ping, witness: Witness, now: float) -> None:
        """A pong that waited while the process was stopped had time to be read; unless it was
        stopped twice, which puts a check off once."""
        awake_s = now - self._pause_end
        is_first = self._stalls_before_pause == witness.stalls
        if is_first and awake_s < 0.5 * witness.gap_s - _TINY_S:
            raise Violation(f"{ping.server} is said to have failed {awake_s} s after a pause")

    def _isolate(self, name: str, now: float) -> None:
        witness = self.servers.get(name)
        if witness is None or witness.isolated_at is not None:
            raise Violation(f"{name} is isolated, and is none that could be")
        failed = witness.failed + 1
        if witness.is_answered or failed < self._rules.invalid_checks_max:
            raise Violation(f"{name} is isolated after {failed} failed checks")
        if len(self.isolated) >= self._isolated_max():
            raise Violation(f"{name} is isolated beside {[*self.isolated]}: too many")
        witness.settle(self._rules.isolation_longest_ms / 1000)
        witness.isolated_at = now
        self.isolated[name] = witness
        self.isolations += 1

    def _check_recovery(self, name: str, now: float) -> None:
        witness = self.isolated.get(name)
        if witness is None:
            raise Violation(f"{name} recovers, and was not isolated")
        if witness.failed or witness.is_lost:
            raise Violation(f"{name} recovers without an answer to its last check")
        if now < self._until(witness) - _TINY_S:
            raise Violation(f"{name} recovers after {now - (witness.isolated_at or 0)} s already")

    def _recover(self, name: str, now: float) -> None:
        witness = self.isolated.pop(name)
        witness.isolated_at = None
        witness.strikes += 1
        witness.recovered_at = now
        self.recoveries += 1

    def _until(self, witness: Witness) -> float:
        assert witness.isolated_at is not None
        first_ms, longest_ms = self._rules.isolation_first_ms, self._rules.isolation_longest_ms
        return witness.isolated_at + min(first_ms << witness.strikes, longest_ms) / 1000

    def _isolated_max(self) -> int:
        share = self._rules.isolated_percent_max / 100
        return max(1, int(len(self.servers) * share + 1e-9))
