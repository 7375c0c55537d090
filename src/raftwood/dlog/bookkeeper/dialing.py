"""Connecting to a bookie: TCP, then TLS where it is asked for.

A bookie's port speaks both: a connection begins in the clear, and a request of the third protocol
turns it over to TLS. What follows may be either protocol.
"""

import asyncio
from typing import Final, cast

from raftwood.base.errors import ProtocolError
from raftwood.base.futures import fail
from raftwood.dlog.bookkeeper import wire_v3
from raftwood.dlog.bookkeeper.connection import LENGTH_BYTES
from raftwood.dlog.errors import BookieUnavailable
from raftwood.dlog.ledgers.model import BookieId
from raftwood.net.tls import ClientTls

_ANSWER_BYTES_MAX: Final = 1024


async def dial(
    protocol: asyncio.Protocol, bookie: BookieId, host: str, port: int, *, tls: ClientTls | None
) -> asyncio.Transport:
    """May take for ever: bound it. Raises `OSError`, `BookieUnavailable` or `ssl.SSLError`."""
    loop = asyncio.get_running_loop()
    if tls is None:
        transport, _ = await loop.create_connection(lambda: protocol, host, port)
        return transport
    plain, asking = await loop.create_connection(lambda: _StartTls(bookie), host, port)
    try:
        await asking.agreed
        secured = await loop.start_tls(plain, protocol, tls.context, server_hostname=host)
    except BaseException:
        plain.abort()
        raise
    assert secured is not None
    return secured


class _StartTls(asyncio.Protocol):
    """Asks for TLS, and waits for the answer."""

    def __init__(self, bookie: BookieId) -> None:
        self._bookie = bookie
        self._received = b""
        self.agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(wire_v3.start_tls_request(0))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < LENGTH_BYTES or self.agreed.done():
            return
        size = int.from_bytes(self._received[:LENGTH_BYTES])
        if size <= _ANSWER_BYTES_MAX and len(self._received) < LENGTH_BYTES + size:
            return
        try:
            if size > _ANSWER_BYTES_MAX:
                raise ProtocolError(f"an answer of {size} bytes to a request for TLS")
            response = wire_v3.parse_response(self._received[LENGTH_BYTES:])
        except ProtocolError as error:
            self._refuse(f"breaks the protocol: {error}")
        else:
            if response.status:
                self._refuse("does not do TLS: give it a key, or turn TLS off here")
            else:
                self.agreed.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.agreed.done():
            self._refuse("ended the connection when asked for TLS")

    def _refuse(self, reason: str) -> None:
        fail(self.agreed, BookieUnavailable(f"bookie {self._bookie} {reason}"))
