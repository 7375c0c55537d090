"""What the rules may do next, told by what has happened so far; written without a look at them."""

from collections import Counter, deque
from zlib import crc32

from raftwood.clogs.client.shipping_rules import (
    Action,
    LocateFile,
    QueuedBatch,
    ShipBatch,
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
        self.waiting: deque[QueuedBatch] = deque()
        self.given = 0
        self.place = ""
        """Where its next new batch goes."""
        self.places: dict[QueuedBatch, str] = {}
        """Where batches that were sent may be stored."""
        self.attempt = 0
        self.is_asking = False
        self.in_flight: list[QueuedBatch] = []
        self.server = ""
        self.failures = 0
        self.retry_at = 0.0
        self.sent: set[QueuedBatch] = set()
        self.acked: set[QueuedBatch] = set()
        """Out of their turn."""

    def first(self) -> QueuedBatch | None:
        while self.waiting and self.waiting[0].is_dropped:
            self.waiting.popleft()
        return self.waiting[0] if self.waiting else None


def sequence_of(entry: QueuedBatch) -> int:
    """Where the model notes it."""
    return entry.spool_index


class Oracle:
    def __init__(self, rules: ShippingRules, limits: ShippingLimits, files: list[File]) -> None:
        self.rules = rules
        self.limits = limits
        self.files = {each.name: each for each in files}
        self.route: dict[str, str] = {}
        self.in_flight: Counter[str] = Counter()
        self.windows: dict[str, int] = {}
        """As servers have told, that have not failed since."""
        self.decided: dict[str, int] = {}
        """As they were when the rules said what to do."""
        self.over = 0
        """Batches that are stored, refused or dropped."""

    # What the rules say

    def acted(self, action: Action, now: float) -> None:
        file = self.files[action.lane.name]
        entry = file.first()
        if entry is None:
            raise Violation(f"{file.name}: there is nothing to do, but {action} is done")
        if file.is_asking:
            raise Violation(f"{file.name}: something is done while it asks")
        if isinstance(action, ShipBatch) and action.follows:
            self._follows(action, file)
            return
        if file.in_flight:
            raise Violation(f"{file.name}: a batch is sent beside others, and does not follow")
        if now < file.retry_at:
            raise Violation(f"{file.name}: another attempt is made too soon")
        if action.attempt <= file.attempt:
            raise Violation(f"{file.name}: an attempt has the number of another one")
        file.attempt = action.attempt
        file.server = server = self.route[file.name]
        self._goes(server)
        if isinstance(action, ShipBatch):
            self._sent(action, file, entry)
            return
        file.is_asking = True
        if isinstance(action, LocateFile):
            if action.server != server or file.place or entry in file.places:
                raise Violation(f"{file.name}: its place is asked for anew, or elsewhere")
        elif action.entry is not entry or entry.batch is not None:
            raise Violation(f"{file.name}: a batch is read that need not be")

    def _goes(self, server: str) -> None:
        self.in_flight[server] += 1
        if self.in_flight[server] > self.limits.in_flight_max:
            raise Violation(f"{server}: too many are under way")

    def _follows(self, action: ShipBatch, file: File) -> None:
        self._goes(file.server)
        before = file.in_flight[-1]
        window = min(self.limits.file_in_flight_max, self.decided.get(file.server, 1))
        if len(file.in_flight) >= window:
            raise Violation(f"{file.name}: more are under way than {file.server} keeps in order")
        if action.attempt != file.attempt or file.places.get(before) != action.place:
            raise Violation(f"{file.name}: a batch follows one of another attempt or place")
        at = file.waiting.index(before) + 1
        if at == len(file.waiting) or sequence_of(before) + 1 != action.batch.sequence:
            raise Violation(f"{file.name}: a batch follows one that is not before it")
        if action.batch.is_resumed:
            raise Violation(f"{file.name}: a resumed batch follows another one")
        self._sent(action, file, file.waiting[at])

    def _sent(self, action: ShipBatch, file: File, entry: QueuedBatch) -> None:
        if action.entry is not entry or action.batch is not entry.batch:
            raise Violation(f"{file.name}: another batch is sent than the next one")
        if action.server != file.server:
            raise Violation(f"{file.name}: a batch goes to a server that is not the ring's")
        place = "" if action.batch.is_resumed else file.places.get(entry, file.place)
        if action.place != place:
            raise Violation(f"{file.name}: a batch goes to {action.place}, not to {place}")
        if action.is_repeat != (entry in file.sent):
            raise Violation(f"{file.name}: a repetition is not told as one")
        file.sent.add(entry)
        if place:
            file.places[entry] = place
        file.in_flight.append(entry)

    # What happens

    def answered(self, file: File, attempt: int) -> bool:
        """Whether what was asked is answered by this."""
        if not file.is_asking or file.attempt != attempt:
            return False
        file.is_asking = False
        self.in_flight[file.server] -= 1
        return True

    def taken_back(self, file: File, entry: QueuedBatch, attempt: int) -> bool:
        """Whether a batch of this attempt is under way; if so, it is not any more, nor are those
        behind it.
        """
        if file.attempt != attempt or entry not in file.in_flight:
            return False
        at = file.in_flight.index(entry)
        self.in_flight[file.server] -= len(file.in_flight) - at
        del file.in_flight[at:]
        return True

    def failed(self, file: File, entry: QueuedBatch | None, attempt: int, now: float) -> bool:
        if entry is None:
            is_news = self.answered(file, attempt)
        else:
            is_news = self.taken_back(file, entry, attempt)
        if is_news:
            self.windows.pop(file.server, None)
            self.wait(file, now)
        return is_news

    def wait(self, file: File, now: float) -> None:
        if not file.in_flight:
            draw = crc32(file.name.encode()) % 1024 / 1024
            file.retry_at = now + self.limits.retry.delay_ms(file.failures, draw) / 1000
            file.failures += 1

    def moved(self, file: File, entry: QueuedBatch, attempt: int, now: float) -> bool:
        """The batch is not at the place that was named, nor are those behind it."""
        if not self.taken_back(file, entry, attempt):
            return False
        ended, behind = file.places.get(entry), False
        for each in file.waiting:
            behind |= each is entry
            if behind and file.places.get(each) == ended:
                del file.places[each]
        if file.place == ended:
            file.place = ""
        self.wait(file, now)
        return True

    def acked(self, file: File, entry: QueuedBatch, place: str) -> list[QueuedBatch]:
        """Those that are over by that."""
        if entry not in file.waiting or entry in file.acked:
            return []
        file.acked.add(entry)
        over = []
        while file.waiting and file.waiting[0] in file.acked:
            first = file.waiting[0]
            if file.in_flight and file.in_flight[0] is first:
                file.in_flight.pop(0)
                self.in_flight[file.server] -= 1
            self.finished(file, first)
            over.append(first)
            file.first()  # passes over those that were dropped
        if over:
            self.answered(file, file.attempt)
            file.place = place
        return over

    def finished(self, file: File, entry: QueuedBatch) -> None:
        """The batch is over."""
        file.waiting.remove(entry)
        file.sent.discard(entry)
        file.acked.discard(entry)
        file.places.pop(entry, None)
        self.over += 1
        self.calm(file)

    @staticmethod
    def calm(file: File) -> None:
        file.failures = 0
        file.retry_at = 0.0

    def ring_changed(self, live: list[str], route: dict[str, str]) -> None:
        self.route = route
        self.windows = {server: each for server, each in self.windows.items() if server in live}
        for file in self.files.values():
            if file.server not in live:
                self.answered(file, file.attempt)
                if file.in_flight:
                    self.taken_back(file, file.in_flight[0], file.attempt)
            if not file.is_asking and not file.in_flight:
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
            if first is None or file.is_asking or file.in_flight or not self.route:
                continue
            if file.retry_at > now:
                if rules.due > file.retry_at:
                    raise Violation(f"{file.name}: nobody comes again for it")
            elif self.in_flight[self.route[file.name]] < self.limits.in_flight_max:
                raise Violation(f"{file.name}: it is stuck")
