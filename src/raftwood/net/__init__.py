"""RPC between Raftwood's processes: framing, authentication, TLS and limits.

Requests are pipelined over authenticated connections; every queue has a bound, every frame a
length checked before it is read and a checksum. May import `base` only, and takes time from the
running loop and randomness from its caller, so that it runs unchanged in simulation.

Start reading with `frames` (the wire format) and `handshake` (authentication): both are state
machines without I/O. `connection` drives them; `server` is the server's end, `client` and `channel`
are the client's. `methods` defines methods, calls and the table of handlers. `stores` keeps
connections to all servers of a cluster. `listeners` bounds the connections of everything that
listens, RPC or not, and shares the event loop fairly among them; `http_listener` is HTTP behind the
same bounds.

    ECHO = Method(1, "echo")
    service = Service()
    service.fast(ECHO, lambda call, payload: call.reply(payload))
    async with Server(service, server_credentials, random_source) as server:
        port = await server.listen()
        async with await connect("127.0.0.1", port, credentials, random_source) as connection:
            answer = await connection.call(ECHO, b"hello", timeout_ms=1000)
"""

from raftwood.base.settings import Secret
from raftwood.net.channel import Channel
from raftwood.net.client import Connection, Stream, connect
from raftwood.net.frames import Payload
from raftwood.net.handshake import ClientCredentials, ServerCredentials
from raftwood.net.identity import Identity
from raftwood.net.limits import ClientLimits, ServerLimits
from raftwood.net.methods import (
    Call,
    FastHandler,
    Method,
    OneWayHandler,
    Service,
    StreamHandler,
    TaskHandler,
    TypedMethod,
)
from raftwood.net.server import Server
from raftwood.net.tls import ClientTls, ServerTls, TlsFiles

__all__ = [
    "Call",
    "Channel",
    "ClientCredentials",
    "ClientLimits",
    "ClientTls",
    "Connection",
    "FastHandler",
    "Identity",
    "Method",
    "OneWayHandler",
    "Payload",
    "Secret",
    "Server",
    "ServerCredentials",
    "ServerLimits",
    "ServerTls",
    "Service",
    "Stream",
    "StreamHandler",
    "TaskHandler",
    "TlsFiles",
    "TypedMethod",
    "connect",
]
