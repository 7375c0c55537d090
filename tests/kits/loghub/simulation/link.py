"""Calls to gateways as native clients make them: each to any gateway, and sent once."""

import random
from collections.abc import Sequence
from typing import Any

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.base.position import Position, position_from_bytes, position_to_bytes
from raftwood.loghub.batches import HEAD_BYTES, decode_head, decompress
from raftwood.loghub.model import AccessKey, Shard
from raftwood.loghub.wire import (
    CLUSTER,
    CONTROL,
    CURSOR,
    KEY_ROLE,
    PULL,
    PUT,
    SHARDS,
    AnyControl,
    CursorRequest,
    Pulled,
    PullRequest,
    PutRequest,
    StreamRequest,
    decode_control_answer,
    decode_pulled,
    encode_control,
    encode_pull,
    encode_put,
)
from raftwood.net import ClientCredentials, ClientLimits, Connection, Identity, Secret, connect
from raftwood.net.identity import split_address
from tests.kits.loghub.streams import log_group, values_of

PROJECT = "p"
_LIMITS = ClientLimits(connect_timeout_ms=1_000, ping_interval_ms=1_000, ping_timeout_ms=1_000)


class Link:
    """Which gateway a call goes to is chosen anew for each, so that what they know gets mixed."""

    def __init__(
        self,
        environment: Environment,
        key: AccessKey,
        addresses: Sequence[str],
        *,
        timeout_ms: int = 4_000,
    ) -> None:
        self._environment = environment
        self._random = random.Random(environment.random.getrandbits(64))
        self._credentials = ClientCredentials(
            cluster_id=CLUSTER,
            identity=Identity(role=KEY_ROLE, node_id=key.id),
            secret=Secret(key.secret.encode()),
        )
        self._addresses = addresses
        self._timeout_ms = timeout_ms
        self._connections: dict[str, Connection] = {}

    async def connection(self) -> Connection:
        address = self._random.choice(self._addresses)
        known = self._connections.get(address)
        if known is not None:
            if known.is_usable:
                return known
            await self._close(self._connections.pop(address))
        host, port = split_address(address)
        made = await connect(
            host, port, self._credentials, self._environment.random, limits=_LIMITS
        )
        other = self._connections.get(address)
        if other is not None:
            await self._close(made)  # another call was faster
            return other
        self._connections[address] = made
        return made

    async def _close(self, connection: Connection) -> None:
        try:
            await connection.close()
        except RaftwoodError:
            return

    async def close(self) -> None:
        for connection in self._connections.values():
            await self._close(connection)

    async def put(
        self, logstore: str, shard: int, text: str, *, producer: str = "", sequence: int = 0
    ) -> Position:
        request = PutRequest(PROJECT, logstore, shard, producer, sequence, log_group(text))
        connection = await self.connection()
        return position_from_bytes(
            bytes(await connection.call(PUT, encode_put(request), self._timeout_ms))
        )

    async def pull(
        self, logstore: str, shard: int, start: int, *, batches_max: int = 100, wait_ms: int = 0
    ) -> Pulled:
        position = position_to_bytes(Position(start))
        request = PullRequest(PROJECT, logstore, shard, position, batches_max, 1 << 20, wait_ms)
        connection = await self.connection()
        return decode_pulled(
            await connection.call(PULL, encode_pull(request), self._timeout_ms + wait_ms)
        )

    async def shards(self, logstore: str) -> list[Shard]:
        connection = await self.connection()
        return await connection.ask(SHARDS, StreamRequest(PROJECT, logstore), self._timeout_ms)

    async def begin(self, logstore: str, shard: int) -> Position:
        connection = await self.connection()
        request = CursorRequest(PROJECT, logstore, shard, "begin")
        return position_from_bytes(await connection.ask(CURSOR, request, self._timeout_ms))

    async def control(self, control: AnyControl) -> Any:
        connection = await self.connection()
        payload = await connection.call(CONTROL, encode_control(control), 3 * self._timeout_ms)
        return decode_control_answer(control, payload)

    async def read_shard(self, logstore: str, shard: int) -> tuple[int, list[tuple[int, str]]]:
        """All that can be read now: from where on, and what."""
        first = position = await self.begin(logstore, shard)
        found: list[tuple[int, str]] = []
        while True:
            pulled = await self.pull(logstore, shard, position)
            if pulled.first > position:
                first, found = pulled.first, []  # that much was freed meanwhile
            found += texts(pulled)
            if pulled.next == position:
                return first, found
            position = pulled.next


def texts(pulled: Pulled) -> list[tuple[int, str]]:
    """Every record of all batches, each with the position of its batch."""
    found = []
    for batch in pulled.batches:
        head = decode_head(batch.data)
        body = decompress(batch.data[HEAD_BYTES:], head.codec, raw_bytes=head.raw_bytes)
        found += [(int(batch.position), text) for text in values_of(bytes(body))]
    return found
