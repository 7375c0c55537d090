"""Client sessions: their entries in the log, and the table that runs each command once.

A client registers, counts its commands, and sends a command again until it is answered. A leader
may commit a command and die before it answers; the client cannot tell, and its next attempt comes
into the log as well. Without sessions it would run twice (Raft dissertation, section 6.3). The
table keeps the results that a client may still ask for, so that a command that was logged twice is
run once and answered alike. Commands of one session may come out of order and several at once.
Planted bugs: "runs repeated commands again", and those of `tests/kits/raft/session_mutants.py`

The entries are of the kind CONTROL. Little-endian, behind one byte that tells them apart:

    REGISTER     the client's nonce (16), how many sessions a group may have (4)
    COMMAND      session (8), sequence (8), acknowledged (8), then the state machine's command
    UNREGISTER   session (8)
    TICK         milliseconds that passed (8), after how many an unused session ends (8)

Limits stand in the entries, and not in the settings of the store that applies them. Otherwise two
replicas with different settings would end different sessions, and run different commands.

`SessionTable.prepare` takes a batch of committed entries and returns the commands that the state
machine has to run; `finish` takes its results and returns the answer to each entry. The table
afterwards depends on the entries and results alone, and not on how they were cut into batches,
which each replica does in its own way: results are kept and forgotten in `finish`, in the order of
the log. Time advances by TICK entries alone. Planted bug: "what is kept depends on batches"
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from raftwood.base.errors import (
    Conflict,
    InvariantViolated,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    SessionExpired,
    StoreDamaged,
    error_class,
)
from raftwood.base.versions import decode_versioned
from raftwood.raft.core import Entry, EntryKind
from raftwood.raft.state_machine import CommittedCommand

REGISTER: Final = 1
COMMAND: Final = 2
UNREGISTER: Final = 3
TICK: Final = 4

NONCE_BYTES: Final = 16

_REGISTER: Final = struct.Struct("<B16sI")
_COMMAND: Final = struct.Struct("<BQQQ")
_UNREGISTER: Final = struct.Struct("<BQ")
_TICK: Final = struct.Struct("<BQQ")
_NEVER_MS: Final = (1 << 63) - 1
_SESSION: Final = struct.Struct("<Q")
_COMMAND_BYTES: Final = _COMMAND.size
_NAME: Final = struct.Struct("<QQ")
_NAME_BYTES: Final = 1 + _NAME.size
_command_head: Final = _COMMAND.unpack_from


class RegisterSession(msgspec.Struct, frozen=True, gc=False):
    """A client asks for a session; the same nonce again gets the same one.

    A client that is not answered registers again. Each attempt would else leave a session behind.
    """

    nonce: bytes
    sessions_max: int


class SessionCommand(msgspec.Struct, gc=False):
    """A command of a session, as the state machine takes it: with index and payload."""

    index: int
    payload: bytes
    session: int
    sequence: int
    acknowledged: int
    """The client waits for no answer up to this sequence any more."""


class UnregisterSession(msgspec.Struct, frozen=True, gc=False):
    """A client needs its session no more."""

    session: int


class SessionTick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed at the leader."""

    elapsed_ms: int
    expiry_ms: int


ControlEntry = RegisterSession | SessionCommand | UnregisterSession | SessionTick


def encode_register(nonce: bytes, *, sessions_max: int) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise ProtocolError(f"a session's nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    return _REGISTER.pack(REGISTER, nonce, sessions_max)


def encode_command(command: bytes, *, session: int, sequence: int, acknowledged: int) -> bytes:
    try:
        return _COMMAND.pack(COMMAND, session, sequence, acknowledged) + command
    except struct.error:
        raise ProtocolError(
            f"session {session}, sequence {sequence}, acknowledged {acknowledged}: "
            f"a number is negative or above 64 bits"
        ) from None


def command_name(payload: bytes) -> bytes | None:
    """The name of a session's command, the same each time it is sent; None for other entries."""
    is_command = len(payload) >= _COMMAND_BYTES and payload[0] == COMMAND
    return payload[:_NAME_BYTES] if is_command else None


def is_command_name(name: bytes) -> bool:
    return len(name) == _NAME_BYTES and name[0] == COMMAND


def session_and_sequence(name: bytes) -> tuple[int, int]:
    session, sequence = _NAME.unpack_from(name, 1)
    return session, sequence


def encode_unregister(session: int) -> bytes:
    return _UNREGISTER.pack(UNREGISTER, session)


def encode_nothing() -> bytes:
    """An entry that changes nothing, to find out whether the group commits."""
    return encode_tick(elapsed_ms=0, expiry_ms=_NEVER_MS)


def encode_tick(*, elapsed_ms: int, expiry_ms: int) -> bytes:
    return _TICK.pack(TICK, elapsed_ms, expiry_ms)


def encode_session(session: int) -> bytes:
    """The answer to a register."""
    return _SESSION.pack(session)


def decode_session(answer: bytes) -> int:
    """The session that the answer to a register names."""
    if len(answer) != _SESSION.size:
        raise ProtocolError(f"an answer of {len(answer)} bytes names no session")
    session: int = _SESSION.unpack(answer)[0]
    return session


def decode_control(entry: Entry) -> ControlEntry:
    """Decodes an entry of the kind CONTROL; `ProtocolError` if it is none."""
    payload = entry.payload
    if payload and payload[0] == COMMAND and len(payload) >= _COMMAND_BYTES:
        _, session, sequence, acknowledged = _command_head(payload)
        command = payload[_COMMAND_BYTES:]
        return SessionCommand(entry.index, command, session, sequence, acknowledged)
    return _decode_seldom(entry.index, payload)


def _decode_seldom(index: int, payload: bytes) -> ControlEntry:
    tag = payload[0] if payload else 0
    try:
        if tag == REGISTER:
            return RegisterSession(*_REGISTER.unpack(payload)[1:])
        if tag == UNREGISTER:
            return UnregisterSession(*_UNREGISTER.unpack(payload)[1:])
        if tag == TICK:
            return SessionTick(*_TICK.unpack(payload)[1:])
    except struct.error:
        pass  # its tag is known and its length is not right
    raise ProtocolError(
        f"entry {index} is no control entry of a raft host that this program knows "
        f"({len(payload)} bytes, {payload[:4].hex()}…): use a newer program"
    )


# Constants and no settings: replicas that disagree on one of them would part.
WINDOW: Final = 1024
"""How far a session's sequences may be ahead of what its client acknowledged."""
RESULT_BYTES_MAX: Final = 64 << 10
SESSION_BYTES_MAX: Final = 1 << 20
"""Bytes of all results kept for one session, errors apart; results beyond are not kept."""
MESSAGE_CHARACTERS_MAX: Final = 1000
IDLE_MS_MIN: Final = 10_000
"""How long a session was not used before another one may take its place."""
ELAPSED_MS_MAX: Final = 60_000
"""The most that one TICK counts: a leader that was stopped for an hour ends no session when it goes
on."""
TABLE_VERSION: Final = 1

_NORMAL: Final = EntryKind.NORMAL
_CONTROL: Final = EntryKind.CONTROL
_UNSEEN: Final = -1
_TABLE_NAME: Final = "a snapshot's session table"
_REMEDY: Final = "remove this replica and add it anew"


class _Failure(msgspec.Struct, frozen=True, array_like=True):
    code: str
    message: str


_Kept = bytes | _Failure | None
"""A result; None if it was too large to be kept."""


class _Session:
    """One client's session; its number is the index of the entry that registered it.

    An index is never used twice, so a client whose session has ended is never taken for another.
    Planted bug: "a session's number is reused"
    """

    __slots__ = ("acknowledged", "forgotten", "kept", "kept_bytes", "nonce", "number", "used_ms")

    def __init__(self, number: int, nonce: bytes, *, used_ms: int, acknowledged: int = 0) -> None:
        self.number = number
        self.nonce = nonce
        self.used_ms = used_ms
        self.acknowledged = acknowledged
        self.forgotten = acknowledged
        """Results are forgotten up to here; less than acknowledged only within a batch."""
        self.kept: dict[int, _Kept | int] = {}
        """Results by sequence; within a batch the position of the entry whose result is to come."""
        self.kept_bytes = 0

    def keep(self, sequence: int, result: Any) -> None:
        if isinstance(result, bytes):
            size = len(result)
            fits = size <= RESULT_BYTES_MAX and self.kept_bytes + size <= SESSION_BYTES_MAX
            if fits:
                self.kept_bytes += size
            self.kept[sequence] = result if fits else None
        elif isinstance(result, RaftwoodError):
            self.kept[sequence] = _Failure(result.code, result.message[:MESSAGE_CHARACTERS_MAX])
        else:
            raise InvariantViolated(
                f"a state machine answered a session's command with a {type(result).__name__}: "
                f"it has to be bytes or a RaftwoodError"
            )

    def forget(self, acknowledged: int) -> None:
        """Drops the results that the client has, or has given up."""
        kept = self.kept
        gone: Iterable[int] = range(self.forgotten + 1, acknowledged + 1)
        if acknowledged - self.forgotten > len(kept):
            # A client may name any number.
            gone = [sequence for sequence in kept if sequence <= acknowledged]
        for sequence in gone:
            result = kept.pop(sequence, None)
            if isinstance(result, bytes):
                self.kept_bytes -= len(result)
        self.forgotten = acknowledged

    def stored(self) -> "_StoredSession":
        results = []
        for sequence in sorted(self.kept):
            kept = self.kept[sequence]
            if isinstance(kept, int):
                raise InvariantViolated(f"session {self.number} is stored amid a batch")
            results.append((sequence, kept))
        return _StoredSession(
            self.number, self.nonce, self.used_ms, self.acknowledged, tuple(results)
        )

    def repeated(self, sequence: int, kept: _Kept) -> bytes | RaftwoodError:
        """The answer to a command that was run in an earlier batch."""
        if isinstance(kept, bytes):
            return kept
        if kept is None:
            return Conflict(
                f"command {sequence} of session {self.number} was applied, once; its result was "
                f"too large to be kept: read what it changed"
            )
        return error_class(kept.code)(kept.message)


class SessionPlan:
    """What `prepare` has found out about a batch, for `finish`."""

    __slots__ = ("answers", "repetitions", "running", "steps")

    def __init__(self, entries: int) -> None:
        self.answers: list[Any] = [None] * entries
        self.running: list[int] = []
        """Positions of the entries whose commands the state machine runs."""
        self.steps: list[tuple[_Session, int, int, int]] = []
        """Session, acknowledged, sequence and position, the last two 0 and -1 if nothing runs."""
        self.repetitions: list[tuple[int, int]] = []
        """Positions of an entry and of the one in the same batch whose answer it shares."""


class _StoredSession(msgspec.Struct, frozen=True, array_like=True):
    number: int
    nonce: bytes
    used_ms: int
    acknowledged: int
    kept: tuple[tuple[int, _Kept], ...]


class _StoredTable(msgspec.Struct, frozen=True, array_like=True):
    version: int
    now_ms: int
    sessions: tuple[_StoredSession, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_StoredTable).decode


class SessionTable:
    """The sessions of one group; its length is their number."""

    __slots__ = ("_nonces", "_sessions", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0
        self._sessions: dict[int, _Session] = {}
        """Sessions in the order of their last use; one used twice between ticks moves once."""
        self._nonces: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def prepare(
        self, entries: Sequence[Entry]
    ) -> tuple[Sequence[CommittedCommand], SessionPlan | None]:
        """The commands that the state machine has to run, in order, and the plan for `finish`.

        Entries without payload and membership changes are no commands. Without a plan all entries
        are plain commands. Each call is followed by `finish` before anything else is done.
        """
        for entry in entries:
            if entry.kind is not _NORMAL or not entry.payload:
                return self._prepare(entries)
        return entries, None

    def _prepare(self, entries: Sequence[Entry]) -> tuple[list[CommittedCommand], SessionPlan]:
        plan = SessionPlan(len(entries))
        commands: list[CommittedCommand] = []
        running = plan.running
        for position, entry in enumerate(entries):
            kind = entry.kind
            if kind is _CONTROL:
                control = decode_control(entry)
                if isinstance(control, SessionCommand):
                    if self._is_new(control, plan, position):
                        running.append(position)
                        commands.append(control)
                else:
                    plan.answers[position] = self._carry_out(control, entry.index)
            elif kind is _NORMAL and entry.payload:
                running.append(position)
                commands.append(entry)
        return commands, plan

    def answer_to(self, session: int, sequence: int) -> bytes | RaftwoodError | None:
        """The answer to a command that was run; None if it is not known."""
        known = self._sessions.get(session)
        kept = _UNSEEN if known is None else known.kept.get(sequence, _UNSEEN)
        if known is None or isinstance(kept, int):
            return None
        return known.repeated(sequence, kept)

    def finish(self, plan: SessionPlan | None, results: Sequence[Any]) -> Sequence[Any]:
        """The answer to each entry of the batch; a `RaftwoodError` is to be raised at the client.

        Session entries are answered with bytes or an error, plain commands with the state machine's
        result, and entries that are no commands with None.
        """
        if plan is None:
            return results
        answers = plan.answers
        if len(results) != len(plan.running):
            raise InvariantViolated(
                f"a state machine gave {len(results)} results for {len(plan.running)} commands"
            )
        for position, result in zip(plan.running, results, strict=True):
            answers[position] = result
        for session, acknowledged, sequence, position in plan.steps:
            if acknowledged > session.forgotten:
                session.forget(acknowledged)
            if sequence:
                session.keep(sequence, answers[position])
        for position, first in plan.repetitions:
            answers[position] = answers[first]
        return answers

    def _is_new(self, command: SessionCommand, plan: SessionPlan, position: int) -> bool:
        """Whether a command has to be run; if not, its answer is in the plan."""
        # Without its session nobody knows whether the command was run before. To run it could be
        # the second time, so the client learns that it may have been applied.
        session = self._sessions.get(command.session)
        if session is None:
            plan.answers[position] = SessionExpired(
                f"session {command.session} has ended or never was: its commands without an answer "
                f"may have been applied; register again"
            )
            return False
        self._touch(session)
        session.acknowledged = max(session.acknowledged, command.acknowledged)
        acknowledged, sequence = session.acknowledged, command.sequence
        kept = session.kept.get(sequence, _UNSEEN)
        is_new = kept == _UNSEEN and acknowledged < sequence <= acknowledged + WINDOW
        if is_new:
            session.kept[sequence] = position
            plan.steps.append((session, acknowledged, sequence, position))
            return True
        plan.steps.append((session, acknowledged, 0, _UNSEEN))
        if sequence <= acknowledged:
            plan.answers[position] = Conflict(
                f"command {sequence} of session {session.number} is acknowledged up to "
                f"{acknowledged} already: it is not run again, and its result is gone"
            )
        elif kept == _UNSEEN:
            plan.answers[position] = Overloaded(
                f"session {session.number} has {WINDOW} commands without acknowledgement: "
                f"acknowledge the answers that came"
            )
        elif isinstance(kept, int):
            plan.repetitions.append((position, kept))
        else:
            plan.answers[position] = session.repeated(sequence, kept)
        return False

    def _touch(self, session: _Session) -> None:
        # The order of use decides which session ends, so it belongs to snapshots. Planted bugs:
        # "the order of use is not snapshotted", "a command does not count as use"
        if session.used_ms != self.now_ms:
            session.used_ms = self.now_ms
            self._sessions[session.number] = self._sessions.pop(session.number)

    def _carry_out(
        self, control: RegisterSession | UnregisterSession | SessionTick, index: int
    ) -> bytes | RaftwoodError:
        if isinstance(control, RegisterSession):
            return self._register(control, index)
        if isinstance(control, SessionTick):
            self.now_ms += min(control.elapsed_ms, ELAPSED_MS_MAX)
            self._end_unused(control.expiry_ms, sessions_max=0)
        elif control.session in self._sessions:
            self._end(control.session)
        return b""

    def _register(self, register: RegisterSession, index: int) -> bytes | RaftwoodError:
        known = self._nonces.get(register.nonce)
        if known is not None:
            self._touch(self._sessions[known])
            return encode_session(known)
        self._end_unused(IDLE_MS_MIN, sessions_max=max(0, register.sessions_max - 1))
        if len(self._sessions) >= register.sessions_max:
            return Overloaded(
                f"the group has {len(self._sessions)} sessions in use: try again later, or raise "
                f"the number of sessions that it may have"
            )
        self._sessions[index] = _Session(index, register.nonce, used_ms=self.now_ms)
        self._nonces[register.nonce] = index
        return encode_session(index)

    def _end_unused(self, unused_ms: int, *, sessions_max: int) -> None:
        """End sessions that were not used for so long, the longest first, down to a number."""
        while len(self._sessions) > sessions_max:
            oldest = next(iter(self._sessions.values()))
            if self.now_ms - oldest.used_ms < unused_ms:
                return
            self._end(oldest.number)

    def _end(self, number: int) -> None:
        del self._nonces[self._sessions.pop(number).nonce]

    def encoded(self) -> bytes:
        """The table for a snapshot; the same bytes on all replicas that applied the same.

        A replica that is restored without it runs again what the log repeats behind the snapshot.
        Planted bug: "leaves sessions out of snapshots"
        """
        sessions = tuple(each.stored() for each in self._sessions.values())
        return _encode(_StoredTable(TABLE_VERSION, self.now_ms, sessions))

    @classmethod
    def decoded(cls, data: bytes) -> "SessionTable":
        """Decodes the table of a snapshot; `UnsupportedVersion` or `StoreDamaged` if it is none."""
        stored = decode_versioned(
            data, _StoredTable, version=TABLE_VERSION, name=_TABLE_NAME, remedy=_REMEDY
        )
        table = cls()
        table.now_ms = stored.now_ms
        for each in stored.sessions:
            session = _Session(
                each.number, each.nonce, used_ms=each.used_ms, acknowledged=each.acknowledged
            )
            session.kept = dict(each.kept)
            session.kept_bytes = sum(len(kept) for _, kept in each.kept if isinstance(kept, bytes))
            table._sessions[each.number] = session
            table._nonces[each.nonce] = each.number
        if not len(table._sessions) == len(table._nonces) == len(stored.sessions):
            raise StoreDamaged(f"{_TABLE_NAME} names a session twice: {_REMEDY}")
        return table
