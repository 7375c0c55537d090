"""`Peers`: connections to the processes that own logs; what one loop turn appends goes together."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InternalError,
    OtherServer,
    ProtocolError,
    RaftwoodError,
    Unauthenticated,
    Unavailable,
)
from raftwood.base.futures import fail
from raftwood.base.position import Position, position_from_bytes
from raftwood.dlog.shared.ownership import Owner
from raftwood.dlog.shared.wire import (
    APPEND,
    BATCHES_MAX,
    PEER_ROLE,
    SEAL,
    TAIL,
    Appended,
    LogRequest,
    Tail,
    TailRequest,
    decode_appended,
    encode_append,
)
from raftwood.net import (
    Backoff,
    Channel,
    ClientCredentials,
    ClientLimits,
    ClientTls,
    Connection,
    Identity,
    Payload,
    Secret,
    connect,
)
from raftwood.net.store_names import split_address

REQUEST_BYTES_MAX: Final = 4 << 20
"""Of one request, unless a single batch is larger."""
_BACKOFF: Final = Backoff(first_ms=20, longest_ms=500)
_LIMITS: Final = ClientLimits(
    connect_timeout_ms=2_000, ping_interval_ms=2_000, ping_timeout_ms=2_000
)


class PeerNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """How the processes that share logs prove themselves to one another."""

    cluster: str
    secret: Secret
    server_role: str
    """In which owners serve; their names are those in the records."""
    tls: ClientTls | None = None


_Waiting = list[tuple[Appended, "asyncio.Future[Position]"]]


class Peers:
    """Use `close` when done; `gone` hears of an owner whose process has ended."""

    def __init__(
        self,
        environment: Environment,
        network: PeerNetwork,
        name: str,
        gone: Callable[[Owner], None],
    ) -> None:
        self._environment = environment
        self._network = network
        self._name = name
        self._gone = gone
        self._channels: dict[Owner, Channel] = {}
        self._waiting: dict[tuple[Owner, str], _Waiting] = {}
        self._closing: dict[asyncio.Task[None], None] = {}

    async def connected(self, owner: Owner, timeout_ms: int) -> None:
        """`Unavailable` where it cannot be reached."""
        channel = self._channel(owner)
        if channel.is_connected:
            return
        try:
            await channel.connected(timeout_ms, retries=False)
        except RaftwoodError as error:
            cause = getattr(channel.last_error, "__cause__", None)
            if isinstance(error, OtherServer) or isinstance(cause, ConnectionRefusedError):
                self._ended(owner)
            if isinstance(error, Unauthenticated):
                raise Unavailable(
                    f"owner {owner.name} at {owner.address} is not reached: {error.message}; have "
                    "all gateways the same secrets.operators?"
                ) from error
            raise

    def append(
        self, owner: Owner, log: str, batch: Appended, timeout_ms: int
    ) -> "asyncio.Future[Position]":
        """Goes with all else that this loop turn has for the log."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush, timeout_ms)
        future: asyncio.Future[Position] = loop.create_future()
        self._waiting.setdefault((owner, log), []).append((batch, future))
        return future

    async def tail(self, owner: Owner, request: TailRequest, timeout_ms: int) -> Tail:
        return await self._channel(owner).ask(TAIL, request, timeout_ms)

    async def seal(self, owner: Owner, log: str, timeout_ms: int) -> Position:
        return position_from_bytes(
            await self._channel(owner).ask(SEAL, LogRequest(log), timeout_ms)
        )

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        if self._closing:
            await asyncio.wait(list(self._closing))

    # Connections

    def _channel(self, owner: Owner) -> Channel:
        channel = self._channels.get(owner)
        if channel is None:
            for each in [each for each in self._channels if each.name == owner.name]:
                self.forget(each)  # Under an earlier lease.
            channel = self._channels[owner] = Channel(
                lambda: self._dial(owner),
                self._environment.random,
                _BACKOFF,
                on_gone=lambda: self._ended(owner),
            )
            channel.start()
        return channel

    async def _dial(self, owner: Owner) -> Connection:
        host, port = split_address(owner.address)
        credentials = ClientCredentials(
            cluster_id=self._network.cluster,
            identity=Identity(role=PEER_ROLE, node_id=self._name),
            secret=self._network.secret,
            server=Identity(role=self._network.server_role, node_id=owner.name),
        )
        return await connect(
            host,
            port,
            credentials,
            self._environment.random,
            limits=_LIMITS,
            tls=self._network.tls,
        )

    def _ended(self, owner: Owner) -> None:
        self.forget(owner)
        self._gone(owner)

    def forget(self, owner: Owner) -> None:
        """It owns nothing any more."""
        channel = self._channels.pop(owner, None)
        if channel is not None:
            # Often called from the channel's own task, which cannot end itself.
            task = asyncio.get_running_loop().create_task(channel.close())
            self._closing[task] = None
            task.add_done_callback(lambda done: self._closing.pop(done, None))

    # Appends

    def _flush(self, timeout_ms: int) -> None:
        waiting, self._waiting = self._waiting, {}
        for (owner, log), batches in waiting.items():
            size, group = 0, _Waiting()
            for each in batches:
                size += len(each[0].data)
                if group and (size > REQUEST_BYTES_MAX or len(group) >= BATCHES_MAX):
                    self._send(owner, log, group, timeout_ms)
                    size, group = len(each[0].data), _Waiting()
                group.append(each)
            self._send(owner, log, group, timeout_ms)

    def _send(self, owner: Owner, log: str, batches: _Waiting, timeout_ms: int) -> None:
        try:
            payload = encode_append(log, [each for each, _ in batches])
            answer = self._channel(owner).call(APPEND, payload, timeout_ms)
        except RaftwoodError as error:
            _settle(batches, [error] * len(batches))
        else:
            answer.add_done_callback(lambda done: _answered(batches, done))


def _answered(batches: _Waiting, answer: "asyncio.Future[Payload]") -> None:
    results: list[Position | RaftwoodError]
    try:
        results = decode_appended(answer.result())
        if len(results) != len(batches):
            raise ProtocolError(f"{len(results)} answers to {len(batches)} forwarded batches")
    except RaftwoodError as error:
        results = [error] * len(batches)
    except asyncio.CancelledError:
        results = [InternalError("a forwarded append was cancelled")] * len(batches)
    _settle(batches, results)


def _settle(
    batches: _Waiting, results: "list[Position | RaftwoodError] | list[RaftwoodError]"
) -> None:
    for (_, future), result in zip(batches, results, strict=True):
        if future.done():
            continue
        if isinstance(result, RaftwoodError):
            fail(future, result)
        else:
            future.set_result(result)
