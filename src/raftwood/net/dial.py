"""Connecting: TCP, TLS where it is asked for, and the handshake, within one timeout."""

import asyncio
import random
import ssl
from typing import Any

from raftwood.base.errors import Unauthenticated, Unavailable
from raftwood.net.client import Connection
from raftwood.net.handshake import ClientCredentials
from raftwood.net.limits import ClientLimits
from raftwood.net.tls import ClientTls


async def connect(
    host: str,
    port: int,
    credentials: ClientCredentials,
    random_source: random.Random,
    *,
    limits: ClientLimits | None = None,
    tls: ClientTls | None = None,
    server_hostname: str | None = None,
) -> Connection:
    """Connect and authenticate, both sides; raises Unavailable or why the server refuses."""
    limits = limits or ClientLimits()
    loop = asyncio.get_running_loop()
    where = f"{host}:{port}"
    options: dict[str, Any] = {}
    if tls is not None:
        options = {"ssl": tls.context, "server_hostname": server_hostname or host}
    connection: Connection | None = None
    is_done = False
    try:
        async with asyncio.timeout(limits.connect_timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: Connection(credentials, random_source, limits), host, port, **options
            )
            await connection.finish_handshake()
        is_done = True
    except TimeoutError as error:
        raise Unavailable(f"{where} did not answer in {limits.connect_timeout_ms} ms") from error
    except ssl.SSLError as error:
        raise Unauthenticated(f"TLS with {where} failed: {error.reason}") from error
    except OSError as error:
        raise Unavailable(f"cannot connect to {where}: {error.strerror or error}") from error
    finally:
        # Also one that is usable: a cancellation may come in the moment the handshake ends.
        if connection is not None and not is_done:
            connection.abandon()
    return connection
