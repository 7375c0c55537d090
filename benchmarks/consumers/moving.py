"""Shards that change hands: nine members join one, all of them leave, some are killed."""

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from benchmarks.consumers.members import Members, Said
from benchmarks.consumers.notes import BEGUN, ENDED, READY, ROUND, STOLEN, now_ns

SHARDS: Final = 100
MEMBERS: Final = 10
FIRST: Final = 0
JOINING: Final = range(1, MEMBERS)
STRAY_S: Final = 3.0
"""So long what moves after all is balanced is still counted."""
WAIT_S: Final = 90.0
MS: Final = 1_000_000


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What it took to go from one member to ten."""

    moves: int
    """Beginnings of a shard at another member than before."""
    rounds: int
    """The most times that one member took or was given something."""
    balanced_ms: float
    """From the word to join to the first call of process() of the last shard that moved."""


class Moved(msgspec.Struct, kw_only=True):
    """All figures of one group."""

    joins: list[Joined] = []
    hand_overs_ms: list[float] = []
    """From a steal's commit to the thief's first call of process()."""
    idle_ms: list[float] = []
    """From the end of the last call of process() at one member to the first one at the next."""
    failovers_ms: list[float] = []
    """From a member's death to the first calls of process() of all its shards elsewhere."""


def measure(
    members: Members, moved: Moved, *, cycles: int, kills: int, progress: Callable[[str], None]
) -> None:
    """Adds to `moved`, in which what was measured stays if something fails then."""
    members.until(lambda: _count(members.said_since(0), READY) == MEMBERS, WAIT_S, "all are ready")
    members.tell([FIRST], "join")
    for cycle in range(1, cycles + 1):
        members.until(lambda: members.sizes()[FIRST] == SHARDS, WAIT_S, "one member has all")
        # At no fixed time after a renewal or a scan.
        time.sleep(1 + 3 * random.random())
        progress(f"nine join, {cycle} of {cycles}")
        _join(members, moved)
        if cycle < cycles:
            members.tell(JOINING, "leave")
    for kill in range(1, kills + 1):
        progress(f"one is killed, {kill} of {kills}")
        _kill(members, MEMBERS - kill, moved)


def _count(said: list[Said], kind: str) -> int:
    return sum(each.note.kind == kind for each in said)


def _join(members: Members, moved: Moved) -> None:
    began_ns = now_ns()
    members.tell(JOINING, "join")
    share = SHARDS // MEMBERS
    even = dict.fromkeys(range(MEMBERS), share)
    members.until(lambda: members.sizes() == even, WAIT_S, "all have the same")
    time.sleep(STRAY_S)
    said = members.said_since(began_ns)
    begun = [each for each in said if each.note.kind == BEGUN]
    rounds = Counter(each.member for each in said if each.note.kind == ROUND)
    moved.joins.append(
        Joined(
            moves=len(begun),
            rounds=max(rounds.values(), default=0),
            balanced_ms=(begun[-1].note.ns - began_ns) / MS,
        )
    )
    moved.hand_overs_ms += _hand_overs_ms(said)
    moved.idle_ms += _idle_ms(said)


def _hand_overs_ms(said: list[Said]) -> list[float]:
    stolen_ns: dict[tuple[int, str], int] = {}
    found = []
    for each in said:
        key = each.member, each.note.shard
        if each.note.kind == STOLEN:
            stolen_ns[key] = each.note.ns
        elif each.note.kind == BEGUN and key in stolen_ns:
            found.append((each.note.ns - stolen_ns.pop(key)) / MS)
    return found


def _idle_ms(said: list[Said]) -> list[float]:
    ended_ns: dict[str, int] = {}
    found = []
    for each in said:
        if each.note.kind == ENDED:
            ended_ns[each.note.shard] = each.note.ns
        elif each.note.kind == BEGUN and each.note.shard in ended_ns:
            found.append((each.note.ns - ended_ns.pop(each.note.shard)) / MS)
    return found


def _kill(members: Members, number: int, moved: Moved) -> None:
    time.sleep(4 * random.random())
    orphans = {shard for shard, member in members.readers().items() if member == number}
    killed_ns = members.kill(number)

    def adopted() -> dict[str, int]:
        said = members.said_since(killed_ns)
        begun = (each.note for each in reversed(said) if each.note.kind == BEGUN)
        return {note.shard: note.ns for note in begun if note.shard in orphans}

    members.until(lambda: adopted().keys() == orphans, WAIT_S, "orphans are read again")
    moved.failovers_ms.append((max(adopted().values()) - killed_ns) / MS)
