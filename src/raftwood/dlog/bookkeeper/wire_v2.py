"""BookKeeper's second protocol: fixed fields in binary, without a number for each request.

    request   length u32 | head u32 | add:  master key 20 | packed entry
                                      read: ledger i64 | entry i64
    response  length u32 | head u32 | status u32 | ledger i64 | entry i64 | packed entry if read

The head is version (2) << 24 | operation << 16 | flags. An answer names the operation, the ledger
and the entry, and nothing else: whoever asks the same of one bookie twice can't tell the answers
apart. Reads that fence are therefore not made by this protocol.
"""

import struct
from collections.abc import Sequence
from typing import Final

from raftwood.base.files import Buffer

ADDED: Final = 0x0201_0000
READ: Final = 0x0202_0000
MASTER_KEY_BYTES: Final = 20
RESPONSE_BYTES: Final = 24
"""Of an answer without an entry, its length aside."""

_RECOVERY_ADD: Final = 0x0002
_ADD: Final = struct.Struct(">II")
_READ: Final = struct.Struct(">IIqq")

RESPONSE: Final = struct.Struct(">IIIqq")
"""Length, head, status, ledger, entry."""


def add_request(master_key: bytes, packed: Sequence[Buffer], *, is_recovery: bool) -> bytes:
    size = 4 + MASTER_KEY_BYTES + sum(map(len, packed))
    head = ADDED | _RECOVERY_ADD if is_recovery else ADDED
    return b"".join((_ADD.pack(size, head), master_key, *packed))


def read_request(ledger: int, entry: int) -> bytes:
    return _READ.pack(20, READ, ledger, entry)
