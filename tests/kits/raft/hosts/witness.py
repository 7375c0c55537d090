"""The witness: outside of all stores, it sees every replica apply and every client's answer.

It keeps one sequence of commands for each group: what the first replica applied, all others apply,
in this order, none twice, none left out. As answers name their position in it, linearizability is
plain to see: nobody is shown less than was shown to anybody before he asked.
"""

from bisect import bisect_right

from raftwood.raft.state_machine import CommittedCommand
from tests.kits.models import Violation


class _Group:
    """All that is known of one group."""

    def __init__(self) -> None:
        self.sequence: list[tuple[int, bytes]] = []
        self.place_of: dict[bytes, int] = {}
        self.values: dict[str, tuple[list[int], list[str]]] = {}
        """The positions and values of each key's writes."""
        self.shown = 0
        """The highest position that somebody was told of."""

    def append(self, index: int, payload: bytes) -> None:
        self.sequence.append((index, payload))
        position = self.place_of[payload] = len(self.sequence)
        key, _, value = payload.decode().partition("=")
        positions, values = self.values.setdefault(key, ([], []))
        positions.append(position)
        values.append(value)

    def value_at(self, key: str, position: int) -> str:
        positions, values = self.values.get(key, ([], []))
        place = bisect_right(positions, position)
        return values[place - 1] if place else ""


class Witness:
    """Forgets nothing and loses nothing; the first promise broken is kept."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        self.broken: Violation | None = None
        self.snapshots_restored = 0

    def _break(self, text: str) -> Violation:
        error = Violation(text)
        self.broken = self.broken or error
        return error

    def _group(self, group: int) -> _Group:
        return self._groups.setdefault(group, _Group())

    def length(self, group: int) -> int:
        return len(self._group(group).sequence)

    def applied(self, who: str, group: int, position: int, command: CommittedCommand) -> None:
        """A replica applies a command after so many others."""
        index, payload = command.index, command.payload
        known = self._group(group)
        sequence = known.sequence
        if position < len(sequence):
            if sequence[position] != (index, payload):
                raise self._break(
                    f"{who} applies {payload!r} at {index} as command {position} of group {group}, "
                    f"where another replica applied {sequence[position]}"
                )
            return
        if sequence and index <= sequence[-1][0]:
            raise self._break(
                f"{who} applies {payload!r} at {index} of group {group}, which others left out: "
                f"they were at {sequence[-1]}"
            )
        if payload in known.place_of:
            raise self._break(
                f"{who} applies {payload!r} at {index} of group {group} a second time: it was "
                f"applied at {sequence[known.place_of[payload] - 1][0]}"
            )
        known.append(index, payload)

    def restored(self, who: str, group: int, position: int, values: dict[str, str]) -> None:
        """A replica took a snapshot in the place of its state."""
        self.snapshots_restored += 1
        known = self._group(group)
        expected = {
            key: known.value_at(key, position)
            for key, (positions, _) in known.values.items()
            if positions[0] <= position
        }
        if position > len(known.sequence) or values != expected:
            raise self._break(
                f"{who} restores a snapshot of group {group} at {position} that is not the state "
                f"there"
            )

    def floor(self, group: int) -> int:
        """What somebody who asks now has to be shown at the least."""
        return self._group(group).shown

    def wrote(self, group: int, payload: bytes, *, position: int, floor: int) -> None:
        """A client was told that its command was applied at a position."""
        known = self._group(group)
        if known.place_of.get(payload) != position:
            raise self._break(
                f"{payload!r} was acknowledged as command {position} of group {group}, and stands "
                f"at {known.place_of.get(payload)}"
            )
        if position <= floor:
            raise self._break(
                f"{payload!r} became command {position} of group {group}, although {floor} was "
                f"known before it was sent"
            )
        known.shown = max(known.shown, position)

    def read(self, group: int, key: str, value: str, *, position: int, floor: int) -> None:
        """A client was told a register's value, as of a position."""
        known = self._group(group)
        if position < floor:
            raise self._break(
                f"a read of {key} in group {group} shows {position} commands, although {floor} "
                f"were known before it was sent"
            )
        if value != known.value_at(key, position):
            raise self._break(
                f"a read of {key} in group {group} shows {value!r} at {position}, where it is "
                f"{known.value_at(key, position)!r}"
            )
        known.shown = max(known.shown, position)
