"""A record, ledgers and contending processes, moved by one seeded choice after the other."""

import random
from collections.abc import Callable

import msgspec

from raftwood.dlog.log import writer_rules as on
from raftwood.dlog.log.meta import LogMeta
from raftwood.dlog.log.writer_rules import WriterPhase, WriterRules
from tests.kits.dlog.harms import Harm
from tests.kits.dlog.log_model.process import ModelLedger, Process
from tests.kits.models import Violation

PROCESSES_MAX = 5
SETTLE_STEPS = 2_000


class Report(msgspec.Struct, frozen=True):
    """What a run came to."""

    events: int
    acked: int
    takeovers: int
    ledgers: int


def rules(writer: bytes) -> WriterRules:
    return WriterRules(writer, preallocates=writer[-1] % 2 == 0)


class World:
    def __init__(self, seed: int, rules: Callable[[bytes], WriterRules]) -> None:
        self.rng = random.Random(seed)
        self.lost = self.rng.choice([0, 0.05, 0.3])
        self.meta = LogMeta(token=b"t" * 16)
        self.version = 1
        self.ledgers: dict[int, ModelLedger] = {}
        self.acked: dict[int, tuple[int, int]] = {}
        self.messages = 0
        self.processes: list[Process] = []
        self._rules = rules
        self._started = 0
        self._late: list[on.SetMeta] = []
        self._next_ledger = 0

    def create(self) -> int:
        number, self._next_ledger = self._next_ledger, self._next_ledger + 1
        self.ledgers[number] = ModelLedger()
        return number

    def later(self, action: on.SetMeta) -> None:
        self._late.append(action)

    def set(self, action: on.SetMeta) -> bool:
        if action.version != self.version:
            return False
        self.meta = action.meta
        self.version += 1
        for info in self.meta.ledgers[:-2]:
            if not self.ledgers[info.ledger].is_closed:
                raise Violation(Harm.OPEN_LEDGERS, f"ledger {info.ledger} of {self.meta.ledgers}")
        return True

    def start(self) -> Process:
        self._started += 1
        process = Process(self, self._rules, self._started)
        self.processes.append(process)
        return process

    def step(self) -> None:
        chance = self.rng.random()
        if not self.processes or (chance < 0.01 and len(self.processes) < PROCESSES_MAX):
            self.start()
            return
        process = self.rng.choice(self.processes)
        if chance < 0.015 or process.is_over:
            self.processes.remove(process)  # It crashed, or has nothing more to do.
        elif chance < 0.02 and self._late:
            self.set(self._late.pop(self.rng.randrange(len(self._late))))
        elif chance < 0.025:
            process.fail()
        elif chance < 0.06:
            process.tell(on.RotationAsked())
        elif chance < 0.065:
            process.tell(on.ValidityEnded())
        elif chance < 0.3:
            self.messages += 1
            process.append(self.messages)
            process.send()
        elif chance < 0.5:
            process.ack()
        elif chance < 0.6:
            process.send()
        elif process.actions:
            process.act()

    def settle(self) -> None:
        """The last process has the log to itself, and ends it."""
        self.lost = 0
        while self._late:
            self.set(self._late.pop())
        self.processes = []
        last = self.start()
        for _ in range(SETTLE_STEPS):
            if last.rules.phase is WriterPhase.WRITING:
                last.tell(on.EndAsked(terminates=True))
            if last.is_over:
                break
            if last.actions:
                last.act()
        if not self.meta.is_terminated:
            raise Violation(Harm.UNWRITABLE, f"it was not ended: {last.rules.phase}")
        self._check()

    def _check(self) -> None:
        listed = [info.ledger for info in self.meta.ledgers]
        found: dict[int, tuple[int, int]] = {}
        for number in listed:
            for place, message in enumerate(self.ledgers[number].stored):
                if message in found:
                    raise Violation(Harm.TWICE, f"message {message}")
                found[message] = number, place
        for message, where in self.acked.items():
            if message not in found:
                raise Violation(Harm.LOST, f"message {message} was acked at {where}")
            if found[message] != where:
                raise Violation(Harm.MOVED, f"message {message}: {where} to {found[message]}")
        for info in self.meta.ledgers:
            stored = len(self.ledgers[info.ledger].stored) - 1
            if not info.is_closed or info.last_entry != stored:
                raise Violation(Harm.WRONG_RECORD, f"{info}, entries up to {stored}")


def run(seed: int, events: int, rules: Callable[[bytes], WriterRules] = rules) -> Report:
    world = World(seed, rules)
    for _ in range(events):
        world.step()
    world.settle()
    return Report(events, len(world.acked), world.meta.takeovers, len(world.ledgers))
