"""Users' passwords: kept as scrypt's hashes, which cost whoever guesses time and memory.

A hash says with what it was made, so that later ones may be made to cost more.
"""

import hashlib
import hmac
import random
from typing import Final

from raftwood.base.errors import InvalidInput

_COST: Final = 1 << 12
"""About 10 ms and 4 MB for each guess; nodes remember who was right (`node/logins`)."""
_BLOCK: Final = 8
_COST_MAX: Final = 1 << 16
_SALT_BYTES: Final = 16
PASSWORD_BYTES_MAX: Final = 512


def password_hash(password: bytes, source: random.Random) -> str:
    """`scrypt$COST$SALT$HASH`, with a salt of its own."""
    if not 1 <= len(password) <= PASSWORD_BYTES_MAX:
        raise InvalidInput(f"a password of {len(password)} bytes: give 1 to {PASSWORD_BYTES_MAX}")
    salt = source.randbytes(_SALT_BYTES)
    return f"scrypt${_COST}${salt.hex()}${_scrypt(password, salt, _COST).hex()}"


def is_password(password: bytes, kept: str) -> bool:
    """Whether a hash was made from this password; not so where nobody could have made it."""
    try:
        kind, cost, salt, expected = kept.split("$")
        if (
            kind != "scrypt"
            or not 2 <= int(cost) <= _COST_MAX
            or len(password) > PASSWORD_BYTES_MAX
        ):
            return False
        found = _scrypt(password, bytes.fromhex(salt), int(cost))
        return hmac.compare_digest(found, bytes.fromhex(expected))
    except ValueError:
        return False


def _scrypt(password: bytes, salt: bytes, cost: int) -> bytes:
    memory = 256 * cost * _BLOCK
    return hashlib.scrypt(password, salt=salt, n=cost, r=_BLOCK, p=1, maxmem=memory, dklen=32)
