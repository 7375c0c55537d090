"""What the rules may do next, told by what has happened so far; written without a look at them."""

from collections import Counter, deque

from raftwood.clogs.client.entries import Entry
from raftwood.clogs.client.shipping_rules import (
    Action,
    Locate,
    Send,
    ShippingLimits,
    ShippingRules,
)
from tests.kits.clogs.shipping_model.storage import Storage
from tests.kits.models import Violation


class File:
    """What is known of one file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.storage = Storage()
        self.waiting: deque[Entry] = deque()
        self.given = 0
        self.place = ""
        self.attempt = 0
        """The one under way; 0: none is."""
        self.server = ""
        self.failures = 0
        self.retry_at = 0.0
        self.sent: set[Entry] = set()

    def first(self) -> Entry | None:
        while self.waiting and self.waiting[0].is_dropped:
            self.waiting.popleft()
        return self.waiting[0] if self.waiting else None


class Oracle:
    def __init__(self, rules: ShippingRules, limits: ShippingLimits, files: list[File]) -> None:
        self.rules = rules
        self.limits = limits
        self.files = {each.name: each for each in files}
        self.route: dict[str, str] = {}
        self.in_flight: Counter[str] = Counter()
        self.over = 0
        """Batches that are stored, refused or dropped."""

    # What the rules say

    def acted(self, action: Action, now: float) -> None:
        file = self.files[action.lane.name]
        entry = file.first()
        if entry is None:
            raise Violation(f"{file.name}: there is nothing to do, but {action} is done")
        if file.attempt:
            raise Violation(f"{file.name}: two of its batches are under way")
        if now < file.retry_at:
            raise Violation(f"{file.name}: another attempt is made too soon")
        file.attempt = action.attempt
        file.server = server = self.route[file.name]
        self.in_flight[server] += 1
        if self.in_flight[server] > self.limits.in_flight_max:
            raise Violation(f"{server}: too many are under way")
        if isinstance(action, Send):
            self._sent(action, file, entry)
        elif isinstance(action, Locate):
            if action.server != server or file.place:
                raise Violation(f"{file.name}: its place is asked for anew, or elsewhere")
        elif action.entry is not entry or entry.batch is not None:
            raise Violation(f"{file.name}: a batch is read that need not be")

    def _sent(self, action: Send, file: File, entry: Entry) -> None:
        if action.entry is not entry or action.batch is not entry.batch:
            raise Violation(f"{file.name}: another batch is sent than the first one")
        if action.server != file.server:
            raise Violation(f"{file.name}: a batch goes to a server that is not the ring's")
        if action.place != ("" if action.batch.is_resumed else file.place):
            raise Violation(f"{file.name}: a batch goes to {action.place}, not to {file.place}")
        if action.is_repeat != (entry in file.sent):
            raise Violation(f"{file.name}: a repetition is not told as one")
        file.sent.add(entry)

    # What happens

    def ended(self, file: File, attempt: int) -> bool:
        """Whether an answer to this attempt counts; if so, nothing is under way any more."""
        if not attempt or file.attempt != attempt:
            return False
        file.attempt = 0
        self.in_flight[file.server] -= 1
        return True

    def failed(self, file: File, attempt: int, now: float) -> bool:
        if not self.ended(file, attempt):
            return False
        file.failures += 1
        file.retry_at = now + self.limits.retry_delay_s(file.name, file.failures)
        return True

    def finished(self, file: File) -> None:
        """The first batch is over."""
        file.sent.discard(file.waiting.popleft())
        self.ended(file, file.attempt)
        self.over += 1
        self.calm(file)

    @staticmethod
    def calm(file: File) -> None:
        file.failures = 0
        file.retry_at = 0.0

    def ring_changed(self, live: list[str], route: dict[str, str]) -> None:
        self.route = route
        for file in self.files.values():
            if file.attempt and file.server not in live:
                self.ended(file, file.attempt)
            if not file.attempt:
                self.calm(file)

    # What must be so after all that the rules said was done

    def check(self, now: float) -> None:
        rules = self.rules
        if +self.in_flight != Counter(rules._in_flight):
            raise Violation(f"under way are {+self.in_flight}, not {rules._in_flight}")
        for file in self.files.values():
            first = file.first()
            if (first is None) != rules.is_idle(file.name):
                raise Violation(f"{file.name}: its idleness is told wrongly")
            if first is None or file.attempt or not self.route:
                continue
            if file.retry_at > now:
                if rules.due > file.retry_at:
                    raise Violation(f"{file.name}: nobody comes again for it")
            elif self.in_flight[self.route[file.name]] < self.limits.in_flight_max:
                raise Violation(f"{file.name}: it is stuck")
