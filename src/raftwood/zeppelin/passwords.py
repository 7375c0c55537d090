"""Users' passwords: scrypt hashes, and checks of logins against them.

A hash makes guessing cost time and memory. It names its parameters, so later hashes may cost more.
"""

import asyncio
import hashlib
import hmac
import random
from collections.abc import Callable
from typing import Final

from raftwood.base.caches import LruCache
from raftwood.base.errors import InvalidInput, Overloaded
from raftwood.zeppelin.model import Topology, User

_COST: Final = 1 << 12
"""About 10 ms and 4 MB for each guess; `Logins` remembers correct passwords."""
_BLOCK: Final = 8
_COST_MAX: Final = 1 << 16
_SALT_BYTES: Final = 16
PASSWORD_BYTES_MAX: Final = 512


def password_hash(password: bytes, source: random.Random) -> str:
    """Returns `scrypt$COST$SALT$HASH`, with a new salt."""
    if not 1 <= len(password) <= PASSWORD_BYTES_MAX:
        raise InvalidInput(f"a password of {len(password)} bytes: give 1 to {PASSWORD_BYTES_MAX}")
    salt = source.randbytes(_SALT_BYTES)
    return f"scrypt${_COST}${salt.hex()}${_scrypt(password, salt, _COST).hex()}"


def is_password(password: bytes, kept: str) -> bool:
    """Whether a hash was made from this password; False for a malformed hash."""
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


# Logins: checks passwords; guesses never keep the loop busy.
#
# A check costs about 10 ms on the loop, the same for simulated and real nodes, so checks run one
# after another, a bounded number per second. A keyed digest remembers a correct password, so a
# client's next connections cost microseconds and do not queue behind guesses.

CHECKS_PER_S: Final = 20
WAIT_S_MAX: Final = 5.0
REMEMBERED_MAX: Final = 1_000


class Logins:
    """Checks the logins of one node."""

    def __init__(self, topology: Callable[[], Topology], source: random.Random) -> None:
        self._topology = topology
        self._key = source.randbytes(32)
        self._known: LruCache[tuple[str, str], bytes] = LruCache(REMEMBERED_MAX)
        """By the user's name and hash: a digest of the correct password."""
        self._under_way: dict[tuple[str, str, bytes], asyncio.Future[bool]] = {}
        """Running checks, by name, hash and digest; equal logins share one check."""
        self._next_at = 0.0

    async def verified(self, name: str, password: bytes) -> User | None:
        """Returns the user with this name and password; None if there is none."""
        if len(password) > PASSWORD_BYTES_MAX:
            return None
        user = self._topology().users.get(name)
        digest = hmac.digest(self._key, password, hashlib.sha256)
        if user is not None:
            known = self._known.get((name, user.password_hash))
            if known is not None and hmac.compare_digest(known, digest):
                return user
        # An unknown name takes as long as a known one: else the time would reveal which names
        # exist.
        kept = _NOBODY if user is None else user.password_hash
        is_right = await self._check(password, (name, kept, digest))
        if not is_right or user is None:
            return None
        self._known.put((name, user.password_hash), digest)
        return user

    async def _check(self, password: bytes, key: tuple[str, str, bytes]) -> bool:
        """Shares one check among equal logins, as of the many connections of one client."""
        while (other := self._under_way.get(key)) is not None:
            await asyncio.wait((other,))
            if not other.cancelled():
                return other.result()
        self._under_way[key] = mine = asyncio.get_running_loop().create_future()
        try:
            await self._turn()
            is_right = is_password(password, key[1])
            mine.set_result(is_right)
        finally:
            # A login that waits for a cancelled check makes its own.
            mine.cancel()
            del self._under_way[key]
        return is_right

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        at = max(self._next_at, now)
        if at - now > WAIT_S_MAX:
            raise Overloaded("too many logins at once: try again in some seconds")
        self._next_at = at + 1 / CHECKS_PER_S
        if at > now:
            await asyncio.sleep(at - now)


_NOBODY: Final = f"scrypt$4096${'00' * 16}${'00' * 32}"
