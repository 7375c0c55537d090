"""Sessions against a naive model: the same log, entry by entry, with everything remembered.

The log is applied by three: the model, a table that takes it in batches of its own, and another
one that takes it in other batches and is now and then restored from its snapshot.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from raftwood.base.errors import Conflict, RaftwoodError
from raftwood.raft import sessions
from raftwood.raft.core import Entry, EntryKind
from raftwood.raft.sessions import (
    ELAPSED_MS_MAX,
    IDLE_MS_MIN,
    RESULT_BYTES_MAX,
    SESSION_BYTES_MAX,
    WINDOW,
    SessionTable,
)
from raftwood.raft.state_machine import CommittedCommand
from tests.kits.models import Violation

SESSIONS_MAX = 12
CLIENTS = 14


class Machine:
    """Its results tell how many commands came before, so that none can come twice unseen."""

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0

    def run(self, command: bytes) -> bytes | RaftwoodError:
        self.count += 1
        self.digest = crc32(command, self.digest)
        if command.startswith(b"fail"):
            return Conflict(f"{self.count} is refused")
        size = int(command.split(b":")[1])
        return b"%d," % self.count + bytes(size)

    def update(self, commands: Sequence[CommittedCommand]) -> list[bytes | RaftwoodError]:
        return [self.run(command.payload) for command in commands]


@dataclass
class Unkept:
    """Too large to be kept; a repetition in the same batch gets it nevertheless."""

    result: Any


@dataclass
class ModelSession:
    nonce: bytes
    used_ms: int
    used_order: int
    acknowledged: int = 0
    results: dict[int, Any] = field(default_factory=dict)
    """Of every command that was ever run."""
    unkept: set[int] = field(default_factory=set)


class Model:
    """What sessions promise, said in the simplest way."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.sessions: dict[int, ModelSession] = {}
        self.now_ms = 0
        self._order = 0

    def apply(self, entry: Entry) -> Any:
        if entry.kind is EntryKind.NORMAL:
            return self.machine.run(entry.payload) if entry.payload else None
        if entry.kind is not EntryKind.CONTROL:
            return None
        said = sessions.decode_control(entry)
        if isinstance(said, sessions.SessionCommand):
            return self._command(said)
        if isinstance(said, sessions.RegisterSession):
            return self._register(said, entry.index)
        if isinstance(said, sessions.UnregisterSession):
            self.sessions.pop(said.session, None)
            return b""
        self.now_ms += min(said.elapsed_ms, ELAPSED_MS_MAX)
        for number, session in list(self.sessions.items()):
            if self.now_ms - session.used_ms >= said.expiry_ms:
                del self.sessions[number]
        return b""

    def _use(self, session: ModelSession) -> None:
        if session.used_ms < self.now_ms:
            self._order += 1
            session.used_ms, session.used_order = self.now_ms, self._order

    def _register(self, said: sessions.RegisterSession, index: int) -> Any:
        for number, session in self.sessions.items():
            if session.nonce == said.nonce:
                self._use(session)
                return sessions.encode_session(number)
        while len(self.sessions) >= said.sessions_max:
            number = min(self.sessions, key=lambda each: self.sessions[each].used_order)
            if self.now_ms - self.sessions[number].used_ms < IDLE_MS_MIN:
                return "overloaded"
            del self.sessions[number]
        self._order += 1
        self.sessions[index] = ModelSession(said.nonce, self.now_ms, self._order)
        return sessions.encode_session(index)

    def _command(self, said: sessions.SessionCommand) -> Any:
        session = self.sessions.get(said.session)
        if session is None:
            return "session_expired"
        self._use(session)
        session.acknowledged = max(session.acknowledged, said.acknowledged)
        if said.sequence <= session.acknowledged:
            return "conflict: acknowledged"
        if said.sequence in session.unkept:
            return Unkept(session.results[said.sequence])
        if said.sequence in session.results:
            return session.results[said.sequence]
        if said.sequence > session.acknowledged + WINDOW:
            return "overloaded"
        result = self.machine.run(said.payload)
        held = sum(
            _size(each)
            for sequence, each in session.results.items()
            if sequence > session.acknowledged and sequence not in session.unkept
        )
        session.results[said.sequence] = result
        if _size(result) > RESULT_BYTES_MAX or held + _size(result) > SESSION_BYTES_MAX:
            session.unkept.add(said.sequence)
        return result


def _size(result: bytes | RaftwoodError) -> int:
    return len(result) if isinstance(result, bytes) else 0


@dataclass
class Client:
    nonce: bytes
    session: int = 0
    sequence: int = 0
    acknowledged: int = 0


class Traffic:
    """Clients that lose answers, ask again, overtake themselves and break rules."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._clients = [Client(rng.randbytes(16)) for _ in range(CLIENTS)]
        self._sent: list[bytes] = []
        self._index = 0

    def entries(self, count: int) -> list[Entry]:
        """Some more of the log; what a client sends at once arrives in any order."""
        payloads: list[tuple[EntryKind, bytes]] = []
        while len(payloads) < count:
            group = self._some()
            self._rng.shuffle(group)
            payloads += group
        entries = []
        for kind, payload in payloads:
            self._index += 1
            entries.append(Entry(1, self._index, kind, payload))
        return entries

    def answered(self, entry: Entry, answer: Any) -> None:
        """Clients learn their sessions from the answers."""
        if entry.kind is not EntryKind.CONTROL:
            return
        said = sessions.decode_control(entry)
        if isinstance(said, sessions.RegisterSession) and isinstance(answer, bytes):
            for client in self._clients:
                if client.nonce == said.nonce and client.session != sessions.decode_session(answer):
                    client.session = sessions.decode_session(answer)
                    client.sequence = client.acknowledged = 0

    def _some(self) -> list[tuple[EntryKind, bytes]]:
        rng = self._rng
        client = rng.choice(self._clients)
        chance = rng.random()
        if chance < 0.60:
            return [(EntryKind.CONTROL, self._command(client)) for _ in range(rng.randint(1, 5))]
        if chance < 0.78 and self._sent:
            again = self._sent[-rng.randint(1, min(len(self._sent), 60)) :][0]
            return [(EntryKind.CONTROL, again)] * rng.randint(1, 2)
        if chance < 0.93:
            return [(EntryKind.NORMAL, b"plain:%d" % rng.randrange(9))] * rng.randint(1, 4)
        if chance < 0.95:
            return [(EntryKind.NORMAL, b""), (EntryKind.CHANGE_V2, b"x")]
        return [(EntryKind.CONTROL, self._control(client))]

    def _command(self, client: Client) -> bytes:
        rng = self._rng
        chance = rng.random()
        if chance < 0.005:
            client.sequence += rng.choice([2, WINDOW, 3 * WINDOW])
        client.sequence += 1
        # Some let results pile up until no more are kept.
        if rng.random() < (0.4 if client.nonce[0] & 1 else 0.02):
            client.acknowledged = rng.randint(client.acknowledged, client.sequence - 1)
        acknowledged = client.acknowledged
        if chance > 0.9995:
            acknowledged = client.acknowledged = client.sequence = (1 << 63) + WINDOW
        size = rng.choice([5, 40_000, 60_000, RESULT_BYTES_MAX + 1]) if rng.random() < 0.5 else 0
        kind = b"fail" if rng.random() < 0.05 else b"do"
        text = b"%s:%d:%d.%d" % (kind, size, client.session, client.sequence)
        payload = sessions.encode_command(
            text,
            session=client.session,
            sequence=client.sequence,
            acknowledged=acknowledged,
        )
        self._sent.append(payload)
        return payload

    def _control(self, client: Client) -> bytes:
        rng = self._rng
        chance = rng.random()
        if chance < 0.10:
            elapsed_ms = rng.choice([0, 100, 100, 100, 3000, 3000, 90_000])
            return sessions.encode_tick(
                elapsed_ms=elapsed_ms, expiry_ms=rng.choice([20_000, 10**6])
            )
        if chance < 0.12:
            return sessions.encode_unregister(client.session)
        if chance < 0.16:
            client.nonce = rng.randbytes(16)
        sessions_max = SESSIONS_MAX if rng.random() < 0.95 else SESSIONS_MAX // 2
        return sessions.encode_register(client.nonce, sessions_max=sessions_max)


def _seen(answer: Any) -> Any:
    if isinstance(answer, Conflict) and "refused" not in answer.message:
        kind = "was applied" if "was applied" in answer.message else "acknowledged"
        return f"conflict: {kind}"
    if isinstance(answer, Unkept):
        return "conflict: was applied"
    if isinstance(answer, RaftwoodError):
        return (answer.code, answer.message) if "refused" in answer.message else answer.code
    return answer


def check(expected: Sequence[Any], answers: Sequence[Any]) -> None:
    for position, (one, other) in enumerate(zip(expected, answers, strict=True)):
        if isinstance(one, Unkept) and other == one.result:
            continue
        if _seen(one) != _seen(other):
            raise Violation(f"entry {position}: {_seen(one)!r:.99} and not {_seen(other)!r:.99}")


def run(seed: int, operations: int) -> dict[str, int]:
    """How often each kind of answer was given; `Violation` where the model says otherwise."""
    rng = random.Random(seed)
    traffic, model = Traffic(rng), Model()
    tables, machines = [SessionTable(), SessionTable()], [Machine(), Machine()]
    counts: dict[str, int] = {}
    done = 0
    while done < operations:
        entries = traffic.entries(rng.randint(1, 120))
        expected = [model.apply(entry) for entry in entries]
        for entry, answer in zip(entries, expected, strict=True):
            traffic.answered(entry, answer)
            name = _seen(answer) if isinstance(_seen(answer), str) else type(answer).__name__
            counts[name] = counts.get(name, 0) + 1
        for each, machine in enumerate(machines):
            answers: list[Any] = []
            rest = entries
            while rest:
                size = rng.choice([1, 2, 7, 40, len(rest)])
                commands, plan = tables[each].prepare(rest[:size])
                answers += tables[each].finish(plan, machine.update(commands))
                rest = rest[size:]
                if each and rng.random() < 0.2:
                    tables[each] = type(tables[each]).decoded(tables[each].encoded())
            check(expected, answers)
            if (machine.count, machine.digest) != (model.machine.count, model.machine.digest):
                raise Violation("the state machine ran something else")
        if tables[0].encoded() != tables[1].encoded():
            raise Violation("two replicas have different tables")
        if len(tables[0]) != len(model.sessions):
            raise Violation("sessions have ended too soon or too late")
        done += len(entries)
    return counts
