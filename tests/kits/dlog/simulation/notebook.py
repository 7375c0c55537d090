"""What writers sent and were acked, and what must then stand in the log."""

from collections import defaultdict, deque

from raftwood.base.position import Position
from raftwood.dlog.log.log_reader import StoredMessage
from raftwood.dlog.log.meta import LogMeta
from tests.kits.dlog.harms import Harm
from tests.kits.models import Violation

Name = tuple[str, int]
"""A producer and its sequence."""


def content(name: Name) -> bytes:
    return f"{name[0]}/{name[1]}".encode()


class Notebook:
    def __init__(self) -> None:
        self.acked: dict[Name, Position] = {}
        self.last_acked = Position(-1)
        self.sent_behind: dict[Name, Position] = {}
        self.sessions: dict[int, list[Name]] = defaultdict(list)
        """What each writer took as new, in order; by the number of the writer."""
        self._unacked: dict[int, deque[Name]] = defaultdict(deque)
        self.seen: dict[Position, bytes] = {}
        """By readers while all was going on."""
        self.ledgers: dict[int, int] = {}
        """Which writer made it."""

    def take(self, session: int, name: Name) -> None:
        """A writer took it as new."""
        self.sessions[session].append(name)
        self._unacked[session].append(name)

    def send(self, name: Name) -> None:
        """For the first time, or once more: where it stands is behind what is acked by now."""
        self.sent_behind.setdefault(name, self.last_acked)

    def ack(self, session: int, name: Name, position: Position) -> None:
        before = self.acked.setdefault(name, position)
        if before != position:
            raise Violation(Harm.TWICE, f"{name} was acked at {before:#x} and at {position:#x}")
        if position <= self.sent_behind[name]:
            raise Violation(
                Harm.TWO_WRITERS,
                f"{name} at {position:#x}, sent behind {self.sent_behind[name]:#x}",
            )
        self.last_acked = max(self.last_acked, position)
        waiting = self._unacked[session]
        if name in waiting:
            if waiting[0] != name:
                raise Violation(Harm.ACKS_OUT_OF_ORDER, f"{name} before {waiting[0]}")
            waiting.popleft()

    def see(self, message: StoredMessage, after: Position | None) -> None:
        if after is not None and message.position <= after:
            raise Violation(Harm.OUT_OF_ORDER, f"{message.position:#x} was read after {after:#x}")
        data = bytes(message.message.payload)
        if self.seen.setdefault(message.position, data) != data:
            raise Violation(Harm.SEEN_AND_GONE, f"at {message.position:#x} is another now")

    def check(self, stored: list[StoredMessage], meta: LogMeta) -> None:
        """Of the whole log at its end."""
        first = meta.first
        positions = [each.position for each in stored]
        if positions != sorted(set(positions)):
            raise Violation(Harm.OUT_OF_ORDER, "the positions of the log")
        at = {each.position: bytes(each.message.payload) for each in stored}
        for name, position in self.acked.items():
            if position >= first and at.get(position) != content(name):
                raise Violation(
                    _harm_of(position, meta, is_other=position in at), f"{name} at {position:#x}"
                )
        places: dict[bytes, Position] = {}
        for position, data in at.items():
            if data in places:
                raise Violation(Harm.TWICE, f"{data!r} at {places[data]:#x} and {position:#x}")
            places[data] = position
        for position, data in self.seen.items():
            if position >= first and at.get(position) != data:
                raise Violation(Harm.SEEN_AND_GONE, f"{data!r} at {position:#x}")
        for session, names in self.sessions.items():
            self._check_session(session, names, places, first)

    def _check_session(
        self, session: int, names: list[Name], places: dict[bytes, Position], first: Position
    ) -> None:
        """What one writer stored is what it took first, in that order, without a hole."""
        found = [places.get(content(name)) for name in names]
        # What was lost may have come again through another writer, to a ledger of that one.
        own = [
            None if each is None or self.ledgers.get(each >> 64) != session else each
            for each in found
        ]
        last, lost = Position(0), None
        for name, position in zip(names, own, strict=True):
            if position is None:
                if self.acked.get(name, first) >= first:
                    lost = lost or name
                continue
            if lost is not None:
                raise Violation(Harm.HOLE, f"{lost} is lost, {name} is not")
            if position < last:
                raise Violation(Harm.OUT_OF_ORDER, f"{name} stands before what came earlier")
            last = position


def _harm_of(position: Position, meta: LogMeta, *, is_other: bool) -> Harm:
    """What became of a message that does not stand where it was acked."""
    place = meta.place_of(position >> 64)
    if place is None:
        return Harm.ACKED_OFF_THE_LIST
    if position >= meta.ledgers[place].end:
        return Harm.ACKED_BEHIND_THE_END
    return Harm.MOVED if is_other else Harm.LOST
