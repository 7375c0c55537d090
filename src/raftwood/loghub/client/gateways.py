"""A client's gateways: a connection to each, and failover to the next one."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidInput,
    ProtocolError,
    Unauthenticated,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.loghub.wire import (
    CLUSTER,
    CONTROL,
    KEY_ROLE,
    AnyControl,
    GetCheckpoints,
    GetLogstore,
    GetProject,
    Heartbeat,
    ListConsumerGroups,
    ListLogstores,
    ListProjects,
    SetCheckpoint,
    TruncateShard,
    UpdateConsumerGroup,
    UpdateLogstore,
    UpdateProject,
    decode_control_answer,
    encode_control,
)
from raftwood.net import (
    Channel,
    ClientCredentials,
    ClientLimits,
    ClientTls,
    Identity,
    Method,
    Payload,
    Secret,
    TypedMethod,
    connect,
)
from raftwood.net.channel import Connector
from raftwood.net.identity import split_address

Request = TypeVar("Request")
Response = TypeVar("Response")

GATEWAYS_MAX: Final = 64
_BACKOFF: Final = Backoff(first_ms=20, longest_ms=1_000)
_LIMITS: Final = ClientLimits(
    connect_timeout_ms=2_000, ping_interval_ms=2_000, ping_timeout_ms=2_000
)
_LOOK_S: Final = 0.01
_PAUSE: Final = Backoff(first_ms=10, longest_ms=500)
_REFUSALS_S: Final = 2.0
"""How long a gateway may not know a key that was just created."""
_REPEATABLE: Final = (
    GetCheckpoints,
    GetLogstore,
    GetProject,
    Heartbeat,
    ListConsumerGroups,
    ListLogstores,
    ListProjects,
    SetCheckpoint,
    TruncateShard,
    UpdateConsumerGroup,
    UpdateLogstore,
    UpdateProject,
)
"""Calls that have the same effect when they are repeated."""


class HubAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of gateways, and the access key that a client authenticates with."""

    addresses: tuple[str, ...]
    access_key: str
    access_secret: Secret
    tls: ClientTls | None = None

    def connector(self, environment: Environment, address: str) -> Connector:
        """Makes one attempt to connect to a gateway."""
        host, port = split_address(address)
        credentials = ClientCredentials(
            cluster_id=CLUSTER,
            identity=Identity(role=KEY_ROLE, node_id=self.access_key),
            secret=self.access_secret,
        )
        return partial(
            connect, host, port, credentials, environment.random, limits=_LIMITS, tls=self.tls
        )


def addresses_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Splits addresses that are given as one text with commas."""
    parts = given.split(",") if isinstance(given, str) else given
    found = tuple(each.strip() for each in parts if each.strip())
    if not 0 < len(found) <= GATEWAYS_MAX:
        raise InvalidInput(f"give 1 to {GATEWAYS_MAX} addresses of gateways, not {len(found)}")
    return found


class Gateways:
    """Call `start` first, and `close` when done."""

    def __init__(self, environment: Environment, access: HubAccess) -> None:
        self._environment = environment
        self._channels = [
            Channel(access.connector(environment, address), environment.random, _BACKOFF)
            for address in access.addresses
        ]
        # Clients begin with different gateways, which spreads the load.
        self._turn = environment.random.randrange(len(self._channels))

    async def start(self, timeout_ms: int) -> None:
        """Connects; one gateway that answers is enough."""
        for channel in self._channels:
            channel.start()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        believed_at = min(deadline, loop.time() + _REFUSALS_S)
        while not any(channel.is_connected for channel in self._channels):
            errors = [channel.last_error for channel in self._channels]
            refusal = next((each for each in errors if isinstance(each, Unauthenticated)), None)
            if refusal is not None and None not in errors and loop.time() >= believed_at:
                raise Unauthenticated(refusal.message)
            if all(isinstance(each, ProtocolError) for each in errors):
                # None of the addresses is a native port: no attempt will do better.
                raise ProtocolError("; ".join(each.message for each in errors if each is not None))
            if loop.time() >= deadline:
                raise self._reason()
            await asyncio.sleep(_LOOK_S)

    def _reason(self) -> Unavailable:
        last = next((each.last_error for each in self._channels if each.last_error), None)
        why = "none has answered yet" if last is None else last.message
        return Unavailable(f"no gateway can be reached: {why}")

    def pick(self, turn: int) -> Channel:
        """Returns a connected gateway, by turns; `Unavailable` if there is none."""
        count = len(self._channels)
        for place in range(count):
            channel = self._channels[(self._turn + turn + place) % count]
            if channel.is_connected:
                return channel
        raise self._reason()

    async def call(
        self,
        method: Method,
        payload: Buffer | Sequence[Buffer],
        *,
        timeout_ms: int,
        attempt_ms: int = 5_000,
        is_repeatable: bool = True,
        turn: int = 0,
    ) -> Payload:
        """Calls one gateway after the other until one answers or the time is over.

        A call that is not repeatable is not repeated after its answer was lost.
        """
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        attempts = 0
        while True:
            try:
                channel = self.pick(turn + attempts)
                return await channel.call(method, payload, attempt_ms)
            except (Unavailable, DeadlineExceeded) as error:
                if isinstance(error, ConnectionLost | DeadlineExceeded) and not is_repeatable:
                    raise
                reason = error
            pause_s = _PAUSE.delay_s(attempts, self._environment.random)
            if deadline is None:
                deadline = loop.time() + timeout_ms / 1000
            if loop.time() + pause_s >= deadline:
                raise reason
            attempts += 1
            await asyncio.sleep(pause_s)

    async def ask(
        self, method: TypedMethod[Request, Response], request: Request, *, timeout_ms: int
    ) -> Response:
        """Like `call`, with structs; for calls that change nothing."""
        payload = await self.call(method, method.encode(request), timeout_ms=timeout_ms)
        return method.decode_response(payload)

    async def control(self, control: AnyControl, *, timeout_ms: int) -> Any:
        """Carries out a control call; does not repeat a change after a lost answer."""
        payload = await self.call(
            CONTROL,
            encode_control(control),
            timeout_ms=timeout_ms,
            attempt_ms=timeout_ms,
            is_repeatable=isinstance(control, _REPEATABLE),
        )
        return decode_control_answer(control, payload)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
