"""Bugs planted in the table of sessions: each must be caught, or the model proves nothing."""

from typing import Any

import msgspec

from raftwood.raft import sessions
from raftwood.raft.sessions import RegisterSession, SessionCommand, SessionPlan, SessionTable
from tests.kits.models import Mutant, Plant, replaced
from tests.kits.raft import session_model
from tests.kits.raft.session_model import run

_OPERATIONS = 10_000


class _ReusedNumbers(SessionTable):
    """A new session gets the number of one that has ended."""

    __slots__ = ("_free",)

    def _end(self, number: int) -> None:
        super()._end(number)
        self._free = number

    def _register(self, register: RegisterSession, index: int) -> Any:
        free = getattr(self, "_free", 0)
        return super()._register(register, index if free in self._sessions else free or index)


class _RunTwice(SessionTable):
    """A command that is twice in one batch is run twice."""

    def _is_new(self, command: SessionCommand, plan: SessionPlan, position: int) -> bool:
        before = len(plan.repetitions)
        is_new = super()._is_new(command, plan, position)
        return is_new or len(plan.repetitions) > before


class _OrderLost(SessionTable):
    """A snapshot forgets which session was used last."""

    @classmethod
    def decoded(cls, data: bytes) -> SessionTable:
        table = super().decoded(data)
        table._sessions = dict(sorted(table._sessions.items()))
        return table


class _NoncesLost(SessionTable):
    """A snapshot forgets who registered."""

    @classmethod
    def decoded(cls, data: bytes) -> SessionTable:
        table = super().decoded(data)
        for session in table._sessions.values():
            del table._nonces[session.nonce]
            session.nonce = session.number.to_bytes(16)
            table._nonces[session.nonce] = session.number
        return table


class _ForgottenFirst(SessionTable):
    """What is acknowledged is forgotten before the batch's results are kept."""

    def finish(self, plan: SessionPlan | None, results: Any) -> Any:
        for session, acknowledged, _, _ in plan.steps if plan else ():
            for sequence in [each for each in session.kept if each <= acknowledged]:
                kept = session.kept[sequence]
                if isinstance(kept, bytes):
                    session.kept_bytes -= len(kept)
                    del session.kept[sequence]
        return super().finish(plan, results)


def _forget_one_more(session: Any, acknowledged: int) -> None:
    _forget(session, acknowledged)
    session.kept.pop(acknowledged + 1, None)


def _stored_without_results(session: Any) -> Any:
    return msgspec.structs.replace(_stored(session), kept=())


_forget, _stored = sessions._Session.forget, sessions._Session.stored


def _run(seed: int) -> object:
    return run(seed, _OPERATIONS)


def _table(kind: type[SessionTable]) -> Plant:
    return replaced(session_model, SessionTable=kind)


MUTANTS = {
    "a session's number is reused": Mutant(_run, _table(_ReusedNumbers)),
    "a command is run twice in one batch": Mutant(_run, _table(_RunTwice)),
    "the order of use is not snapshotted": Mutant(_run, _table(_OrderLost)),
    "nonces are not snapshotted": Mutant(_run, _table(_NoncesLost)),
    "what is kept depends on batches": Mutant(_run, _table(_ForgottenFirst)),
    "results are dropped too early": Mutant(
        _run, replaced(sessions._Session, forget=_forget_one_more)
    ),
    "results are not snapshotted": Mutant(
        _run, replaced(sessions._Session, stored=_stored_without_results)
    ),
    "a command does not count as use": Mutant(_run, replaced(SessionTable, _touch=lambda *_: None)),
}
