"""`Position`: the place of a batch in a log of any kind.

128 bits, ordered: an LSN, or (ledger 64, entry 48, batch 16 bits). Text in offsets and command
lines, 16 bytes big-endian in columns, the decimal number in SLS cursors.
"""

from typing import Final, NewType

from raftwood.base.errors import InvalidInput

Position = NewType("Position", int)

POSITION_MAX: Final = (1 << 128) - 1
_LEDGER_MAX: Final = (1 << 64) - 1
_ENTRY_MAX: Final = (1 << 48) - 1
_BATCH_MAX: Final = (1 << 16) - 1


def position_of_entry(*, ledger: int, entry: int, batch: int = 0) -> Position:
    """Makes the position of a message in a ledger's entry."""
    if not (0 <= ledger <= _LEDGER_MAX and 0 <= entry <= _ENTRY_MAX and 0 <= batch <= _BATCH_MAX):
        raise InvalidInput(
            f"no position for ledger {ledger}, entry {entry}, batch {batch}: they take 64, 48 and "
            "16 bits"
        )
    return Position(ledger << 64 | entry << 16 | batch)


def entry_of_position(position: Position) -> tuple[int, int, int]:
    """Splits a position into (ledger, entry, batch)."""
    return position >> 64, position >> 16 & _ENTRY_MAX, position & _BATCH_MAX


def position_to_bytes(position: Position) -> bytes:
    return position.to_bytes(16, "big")


def position_from_bytes(data: bytes) -> Position:
    if len(data) != 16:
        raise InvalidInput(f"a position has 16 bytes, not {len(data)}")
    return Position(int.from_bytes(data, "big"))


def parse_position(text: str) -> Position:
    """Parses a position from its decimal text."""
    if not (text.isascii() and text.isdigit() and len(text) <= 39 and int(text) <= POSITION_MAX):
        raise InvalidInput(
            f"position {text[:60]!r} is not a decimal number of 128 bits: give one as printed by "
            "an append or a read"
        )
    return Position(int(text))
