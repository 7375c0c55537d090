"""The host's own entries: how a client's session begins and ends, what it commands, and time.

They are entries of the kind CONTROL. Little-endian, behind one byte that tells them apart:

    REGISTER     the client's nonce (16), how many sessions a group may have (4)
    COMMAND      session (8), sequence (8), acknowledged (8), then the state machine's command
    UNREGISTER   session (8)
    TICK         milliseconds that passed (8), after how many an unused session ends (8)

What decides over sessions stands in the entries, and not in the settings of whoever applies them:
so all replicas decide alike.
"""

import struct
from typing import Final

import msgspec

from raftwood.base.errors import ProtocolError
from raftwood.raft.core import Entry

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


class Register(msgspec.Struct, frozen=True, gc=False):
    """A client wants a session; the same nonce again gets the same one."""

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


class Unregister(msgspec.Struct, frozen=True, gc=False):
    """A client needs its session no more."""

    session: int


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed at the leader."""

    elapsed_ms: int
    expiry_ms: int


Control = Register | SessionCommand | Unregister | Tick


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
    """What a session's command is known by, however often it is sent; None for other entries."""
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
    """An entry that changes nothing, for whoever wants to see one committed."""
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


def decode_control(entry: Entry) -> Control:
    """What an entry of the kind CONTROL says, or `ProtocolError`."""
    payload = entry.payload
    if payload and payload[0] == COMMAND and len(payload) >= _COMMAND_BYTES:
        _, session, sequence, acknowledged = _command_head(payload)
        command = payload[_COMMAND_BYTES:]
        return SessionCommand(entry.index, command, session, sequence, acknowledged)
    return _decode_seldom(entry.index, payload)


def _decode_seldom(index: int, payload: bytes) -> Control:
    tag = payload[0] if payload else 0
    try:
        if tag == REGISTER:
            return Register(*_REGISTER.unpack(payload)[1:])
        if tag == UNREGISTER:
            return Unregister(*_UNREGISTER.unpack(payload)[1:])
        if tag == TICK:
            return Tick(*_TICK.unpack(payload)[1:])
    except struct.error:
        pass  # its tag is known and its length is not right
    raise ProtocolError(
        f"entry {index} is no control entry of a raft host that this program knows "
        f"({len(payload)} bytes, {payload[:4].hex()}…): use a newer program"
    )
