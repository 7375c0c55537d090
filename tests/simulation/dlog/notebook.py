"""What writers sent and were acked, and what must then stand in the log."""

from collections import defaultdict

from raftwood.base.position import Position
from raftwood.dlog.log.log_reader import StoredMessage

Name = tuple[str, int]
"""A producer and its sequence."""


class Violation(AssertionError):
    """A promise was broken."""


def content(name: Name) -> bytes:
    return f"{name[0]}/{name[1]}".encode()


class Notebook:
    def __init__(self) -> None:
        self.acked: dict[Name, Position] = {}
        self.sessions: dict[int, list[Name]] = defaultdict(list)
        """What each writer took as new, in order; by the number of the writer."""
        self.seen: dict[Position, bytes] = {}
        """By readers while all was going on."""
        self.ledgers: dict[int, int] = {}
        """Which writer made it."""

    def ack(self, name: Name, position: Position) -> None:
        before = self.acked.setdefault(name, position)
        if before != position:
            raise Violation(f"{name} was acked at {before:#x} and at {position:#x}")

    def see(self, message: StoredMessage, after: Position | None) -> None:
        if after is not None and message.position <= after:
            raise Violation(f"a reader went back from {after:#x} to {message.position:#x}")
        data = bytes(message.message.payload)
        if self.seen.setdefault(message.position, data) != data:
            raise Violation(f"readers saw different things at {message.position:#x}")

    def check(self, stored: list[StoredMessage], first: Position) -> None:
        """Of the whole log at the end: `first` is where it begins."""
        positions = [each.position for each in stored]
        if positions != sorted(set(positions)):
            raise Violation("the log is not in order")
        at = {each.position: bytes(each.message.payload) for each in stored}
        for name, position in self.acked.items():
            if position >= first and at.get(position) != content(name):
                found = at.get(position)
                raise Violation(f"{name} was acked at {position:#x}, where {found!r} stands")
        places: dict[bytes, Position] = {}
        for position, data in at.items():
            if data in places:
                raise Violation(f"{data!r} stands at {places[data]:#x} and at {position:#x}")
            places[data] = position
        for position, data in self.seen.items():
            if position >= first and at.get(position) != data:
                raise Violation(f"a reader saw {data!r} at {position:#x}, and it is gone")
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
                raise Violation(f"{lost} is lost, and {name}, which came later, is stored")
            if position < last:
                raise Violation(f"{name} stands before what came earlier")
            last = position
