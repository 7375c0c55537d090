"""Fluent Forward's handshake with a shared key, as the server sees it: HELO, PING, PONG.

Both sides prove that they know the key, over a nonce of the server and a salt of the client.
"""

import hashlib
import hmac
import random
from typing import Any, Final

import msgpack

from raftwood.base.errors import ProtocolError, Unauthenticated
from raftwood.base.settings import Secret

SERVER_NAME: Final = b"raftwood"
_NONCE_BYTES: Final = 16


class Handshake:
    """One connection's: send `helo`, hand the answer to `received`, send what that gives."""

    def __init__(self, shared_key: Secret, random_source: random.Random) -> None:
        self._shared_key = shared_key.reveal().encode()
        self._nonce = random_source.randbytes(_NONCE_BYTES)

    def helo(self) -> bytes:
        options = {"nonce": self._nonce, "auth": "", "keepalive": True}
        return bytes(msgpack.packb(["HELO", options]))

    def received(self, ping: Any) -> bytes:
        """PONG for a peer that knows the key, else `Unauthenticated`."""
        if not (
            type(ping) is tuple
            and len(ping) == 6
            and ping[0] == b"PING"
            and all(type(each) is bytes for each in ping[1:4])
        ):
            raise ProtocolError("a Fluent peer did not answer HELO with PING: give it a shared key")
        _, name, salt, digest = ping[:4]
        if not hmac.compare_digest(digest, self._digest(salt, name)):
            raise Unauthenticated(
                "a Fluent peer has another shared key: give it ways_in.fluent_shared_key"
            )
        own = self._digest(salt, SERVER_NAME)
        return bytes(msgpack.packb(["PONG", True, "", SERVER_NAME.decode(), own.decode()]))

    def refusal(self) -> bytes:
        """PONG for a peer that does not."""
        return bytes(msgpack.packb(["PONG", False, "shared_key mismatch", "", ""]))

    def _digest(self, salt: bytes, name: bytes) -> bytes:
        parts = b"".join((salt, name, self._nonce, self._shared_key))
        return hashlib.sha512(parts).hexdigest().encode()
