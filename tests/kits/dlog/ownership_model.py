"""Processes that contend for one log, event by event: a record with versions, leases, lost answers,
crashes. What is under way comes in any order; the watch of each process is late, but in order."""

import random
from collections import deque
from collections.abc import Callable
from functools import partial

from raftwood.dlog import ownership as rules
from raftwood.dlog.ownership import Action, Event, LogOwner, OwnerSeen, Ownership, OwnershipPhase
from tests.kits.models import Mutant, Violation


class Process:
    """One process; dead ones do nothing any more."""

    def __init__(self, name: str, make: Callable[[str], Ownership]) -> None:
        self.name = name
        self.rules = make(name)
        self.me: LogOwner | None = None
        self.writers: set[int] = set()
        """Claims of writers that are open, or about to be."""
        self.opening: set[int] = set()
        self.told = 0
        """As of which version it has heard of the record."""
        self.is_alive = True
        self.watched = 0


class World:
    """The metastore and all processes."""

    def __init__(self, seed: int, make: Callable[[str], Ownership], *, processes: int = 3) -> None:
        self.random = random.Random(seed)
        self.version = 1
        self.record: tuple[LogOwner, int] | None = None
        self.changes: list[OwnerSeen] = []
        self.history: dict[int, LogOwner] = {}
        self.leases: dict[int, Process] = {}
        self._next_lease = 1
        self.processes = [Process(f"p{number}", make) for number in range(processes)]
        self.under_way: list[Callable[[], None]] = []
        self.takeovers = 0
        for process in self.processes:
            self.grant(process)

    # What the metastore does

    def set_record(self, record: LogOwner | None) -> int:
        self.version += 1
        self.record = None if record is None else (record, self.version)
        if record is not None:
            self.history[self.version] = record
        self.changes.append(OwnerSeen(record, 0 if record is None else self.version, self.version))
        return self.version

    def grant(self, process: Process) -> None:
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self.leases[lease] = process
        process.me = LogOwner(process.name, f"{process.name}:1", lease)
        self.tell(process, rules.LeaseBegan(process.me))

    def expire(self, lease: int) -> None:
        """In the metastore: whoever had it has stopped before."""
        process = self.leases.pop(lease)
        if process.is_alive and process.me is not None and process.me.lease == lease:
            self.end_lease(process)
        if self.record is not None and self.record[0].lease == lease:
            self.set_record(None)

    def end_lease(self, process: Process) -> None:
        process.me = None
        self.tell(process, rules.LeaseEnded())
        if process.writers:
            raise Violation(f"{process.name} has an open writer without a lease")

    # What processes do

    def tell(self, process: Process, event: rules.Event) -> None:
        if not process.is_alive:
            return
        if isinstance(event, OwnerSeen):
            process.told = max(process.told, event.as_of)
        for action in process.rules.step(event):
            self._do(process, action)
        self._check(process)

    def _do(self, process: Process, action: rules.Action) -> None:
        match action:
            case rules.Claim(me, version):
                self.under_way.append(lambda: self._claim(process, me, version))
            case rules.ReadOwner():
                self.under_way.append(lambda: self._look(process))
            case rules.OpenWriter(claim):
                if self.history[claim].name != process.name:
                    raise Violation(f"{process.name} opens a writer under another's claim")
                process.opening.add(claim)
                self.under_way.append(lambda: self._open(process, claim))
            case rules.StopWriter(claim):
                process.writers.discard(claim)
            case rules.CloseWriter(claim):
                self.under_way.append(lambda: self._close(process, claim))
            case rules.RemoveRecord(claim):
                self.under_way.append(lambda: self._remove(process, claim))
            case rules.Rest():
                self.under_way.append(lambda: self.tell(process, rules.Rested()))

    def _claim(self, process: Process, me: LogOwner, version: int) -> None:
        held = 0 if self.record is None else self.record[1]
        found: int | None = None
        if held == version and me.lease in self.leases:
            before = None if self.record is None else self.record[0]
            if before is not None and self._lives(before):
                raise Violation(f"{process.name} takes the log from {before.name}, which lives")
            found = self.set_record(me)
            self.takeovers += 1
        if self.random.random() < 0.2:
            self.tell(process, rules.ClaimUnknown())
        else:
            self.under_way.append(lambda: self.tell(process, rules.ClaimAnswered(found)))

    def _lives(self, owner: LogOwner) -> bool:
        process = self.leases.get(owner.lease)
        return process is not None and process.is_alive and process.me == owner

    def _look(self, process: Process) -> None:
        owner, version = self.record or (None, 0)
        seen = OwnerSeen(owner, version, self.version)
        self.under_way.append(lambda: self.tell(process, seen))

    def _open(self, process: Process, claim: int) -> None:
        process.opening.discard(claim)
        if self.random.random() < 0.2:
            self.tell(process, rules.WriterFailed(claim))
        elif process.is_alive:
            process.writers.add(claim)
            self.tell(process, rules.WriterOpened(claim))

    def _close(self, process: Process, claim: int) -> None:
        process.writers.discard(claim)
        self.tell(process, rules.WriterClosed(claim))

    def _remove(self, process: Process, claim: int) -> None:
        as_of = None
        if self.record is not None and self.record[1] == claim:
            as_of = self.set_record(None)
        self.under_way.append(lambda: self.tell(process, rules.RecordLeft(claim, as_of)))

    def _check(self, process: Process) -> None:
        has = process.rules
        if not process.writers <= {has.claim}:
            raise Violation(
                f"{process.name} has writers {process.writers}, its claim is {has.claim}"
            )
        if has.phase is OwnershipPhase.OWNING:
            later = [each for each in self.changes if has.claim < each.as_of <= process.told]
            if later:
                raise Violation(f"{process.name} owns the log though it was told of {later[0]}")
            if has.claim not in process.writers:
                raise Violation(f"{process.name} owns the log and has no writer")

    # What happens

    def watch(self, process: Process) -> None:
        if process.watched < len(self.changes):
            process.watched += 1
            self.tell(process, self.changes[process.watched - 1])

    def step(self) -> None:
        choice = self.random.random()
        process = self.random.choice(self.processes)
        if choice < 0.45 and self.under_way:
            self.under_way.pop(self.random.randrange(len(self.under_way)))()
        elif choice < 0.7:
            self.watch(process)
        elif choice < 0.85:
            self.tell(process, rules.OwnerWanted())
        elif choice < 0.88:
            self.tell(process, rules.GiveBack())
        elif choice < 0.92:
            if process.writers:
                self.tell(process, rules.WriterFailed(min(process.writers)))
        elif choice < 0.95:
            if process.me is not None:
                self.end_lease(process)  # by its own clock; the metastore's comes later
        elif choice < 0.96:
            if self.leases:
                self.expire(self.random.choice(list(self.leases)))
        elif choice < 0.97:
            if self.record is not None:
                self.set_record(None)  # by hand
        elif process.me is None and process.is_alive:
            self.grant(process)
        elif choice > 0.99:
            self._crash(process)

    def _crash(self, process: Process) -> None:
        if process.is_alive and sum(each.is_alive for each in self.processes) > 1:
            process.is_alive = False
            process.writers.clear()
            gone = process.me
            if gone is not None:
                for other in self.processes:
                    self.under_way.append(
                        lambda other=other: self.tell(other, rules.OwnerGone(gone))  # type: ignore[misc]
                    )

    def settle(self) -> None:
        """Nothing more goes wrong: one of those who live owns the log, and all others know it."""
        for lease, process in list(self.leases.items()):
            if not process.is_alive or process.me is None or process.me.lease != lease:
                self.expire(lease)
        alive = [each for each in self.processes if each.is_alive]
        for process in alive:
            if process.me is None:
                self.grant(process)
        pending = deque(self.under_way)
        self.under_way = []
        for _ in range(400):
            while pending or self.under_way:
                pending.extend(self.under_way)
                self.under_way = []
                pending.popleft()()
            for process in alive:
                while process.watched < len(self.changes):
                    self.watch(process)
                if (
                    process.rules.elsewhere is None
                    and process.rules.phase is not OwnershipPhase.OWNING
                ):
                    self.tell(process, rules.OwnerWanted())
            owning = [each for each in alive if each.rules.phase is OwnershipPhase.OWNING]
            if len(owning) == 1 and not self.under_way:
                me = owning[0].me
                others = [each for each in alive if each is not owning[0]]
                assert me is not None
                if all(each.rules.elsewhere == me for each in others):
                    return
        phases = [(each.name, each.rules.phase, each.rules.elsewhere) for each in alive]
        raise Violation(f"the log has no owner that all agree on: {phases}, record {self.record}")


def play(seed: int, make: Callable[[str], Ownership] = Ownership, *, steps: int = 300) -> World:
    world = World(seed, make)
    for _ in range(steps):
        world.step()
    world.settle()
    return world


# Planted bugs


class _BelievesOldNews(Ownership):
    def _owner_seen(self, event: OwnerSeen) -> list[Action]:
        self._as_of = 0
        return super()._owner_seen(event)


class _GoesOnWhenSuperseded(Ownership):
    def _owner_seen(self, event: OwnerSeen) -> list[Action]:
        return [] if self.claim else super()._owner_seen(event)


class _KeepsWriterWithoutLease(Ownership):
    def _lease_ended(self) -> list[Action]:
        self._me = None
        return []


class _TakesLateWriter(Ownership):
    def _of_writer(self, event: Event) -> list[Action]:
        if isinstance(event, rules.WriterOpened) and event.claim != self.claim:
            return []
        return super()._of_writer(event)


class _TakesWhatOthersOwn(Ownership):
    @property
    def elsewhere(self) -> LogOwner | None:
        return None


class _ForgetsLostAnswers(Ownership):
    def _is_me(self) -> bool:
        return (
            bool(self.phase is OwnershipPhase.AWAY and self._claiming is None) and super()._is_me()
        )

    def _claimed(self, event: rules.ClaimAnswered | rules.ClaimUnknown) -> list[Action]:
        if isinstance(event, rules.ClaimUnknown):
            self.phase = OwnershipPhase.RESTING
            return [rules.Rest()]
        self._claiming, claimed = None, self._claiming
        if event.version is not None:
            self._claiming = claimed
        return super()._claimed(event)


class _BelievesAnyoneGone(Ownership):
    def step(self, event: Event) -> list[Action]:
        if isinstance(event, rules.OwnerGone):
            self._is_gone = True
            return self._try()
        return super().step(event)


MUTANTS = {
    "believes old news": Mutant(partial(play, make=_BelievesOldNews)),
    "goes on when superseded": Mutant(partial(play, make=_GoesOnWhenSuperseded)),
    "keeps writer without lease": Mutant(partial(play, make=_KeepsWriterWithoutLease)),
    "takes late writer": Mutant(partial(play, make=_TakesLateWriter)),
    "takes what others own": Mutant(partial(play, make=_TakesWhatOthersOwn)),
    "forgets lost answers": Mutant(partial(play, make=_ForgetsLostAnswers)),
    "believes anyone gone": Mutant(partial(play, make=_BelievesAnyoneGone)),
}
