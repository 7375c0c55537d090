"""`DlogPeers`: connections to the processes that own logs, and the messages between them.

Appends of one turn of the event loop go together.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InternalError,
    InvalidInput,
    OtherServer,
    ProtocolError,
    RaftwoodError,
    Unauthenticated,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.base.futures import fail
from raftwood.base.position import Position, position_from_bytes, position_to_bytes
from raftwood.dlog.ownership import LogOwner
from raftwood.net import (
    Channel,
    ClientCredentials,
    ClientLimits,
    ClientTls,
    Connection,
    Identity,
    Method,
    Payload,
    Secret,
    TypedMethod,
    connect,
)
from raftwood.net.identity import split_address
from raftwood.net.method_numbers import MethodNumber
from raftwood.net.wire_errors import decode_error, encode_error

PEER_ROLE: Final = "dlog-peer"
_ROLES: Final = (PEER_ROLE,)
_LENGTH: Final = struct.Struct("<I")
BATCHES_MAX: Final = 4_096
"""The most batches in one request."""
WAIT_MS_MAX: Final = 30_000
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class AppendRequest(msgspec.Struct, frozen=True):
    """One batch to append."""

    producer: bytes
    """A name in UTF-8: text on the wire."""
    sequence: int
    pieces: Sequence[Buffer]

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


class _AppendHead(msgspec.Struct, frozen=True, array_like=True):
    log: str
    producers: tuple[str, ...]
    sequences: tuple[int, ...]
    sizes: tuple[int, ...]


class _AppendAnswer(msgspec.Struct, frozen=True, array_like=True):
    positions: bytes
    """16 bytes for each batch."""
    errors: dict[int, bytes] = {}
    """Errors by place of the batch; the position there has no meaning."""


class LogRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request about a log."""

    log: str


class TailRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a log's end, and waits until it is above a position."""

    log: str
    after: bytes
    wait_ms: int = 0


class Tail(msgspec.Struct, frozen=True, array_like=True):
    """The end of a log."""

    next: bytes
    is_sealed: bool
    appended_bytes: int

    @property
    def position(self) -> Position:
        return position_from_bytes(self.next)


APPEND: Final = Method(MethodNumber.DLOG_APPEND, "dlog-append", roles=_ROLES)
TAIL: Final = TypedMethod(
    MethodNumber.DLOG_TAIL, "dlog-tail", request=TailRequest, response=Tail, roles=_ROLES
)
SEAL: Final = TypedMethod(
    MethodNumber.DLOG_SEAL, "dlog-seal", request=LogRequest, response=bytes, roles=_ROLES
)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_head: Final = msgspec.msgpack.Decoder(_AppendHead).decode
_decode_answer: Final = msgspec.msgpack.Decoder(_AppendAnswer).decode


def encode_append(log: str, batches: Sequence[AppendRequest]) -> list[Buffer]:
    head = _encode(
        _AppendHead(
            log,
            tuple([each.producer.decode() for each in batches]),
            tuple([each.sequence for each in batches]),
            tuple([each.size for each in batches]),
        )
    )
    return [
        _LENGTH.pack(len(head)) + head,
        *(piece for each in batches for piece in each.pieces),
    ]


def decode_append(payload: Payload) -> tuple[str, list[AppendRequest]]:
    view = memoryview(payload)
    try:
        (length,) = _LENGTH.unpack_from(view)
        offset = _LENGTH.size + length
        head = _decode_head(view[_LENGTH.size : offset])
    except (*_UNREADABLE, struct.error) as error:
        raise InvalidInput(f"a forwarded append cannot be read: {error}") from error
    count = len(head.sizes)
    is_whole = len(head.producers) == len(head.sequences) == count <= BATCHES_MAX
    if not is_whole or min(head.sizes, default=0) < 0 or offset + sum(head.sizes) != len(view):
        raise InvalidInput("a forwarded append has not the batches that it says it has")
    found = []
    for producer, sequence, size in zip(head.producers, head.sequences, head.sizes, strict=True):
        found.append(AppendRequest(producer.encode(), sequence, (view[offset : offset + size],)))
        offset += size
    return head.log, found


def encode_appended(results: Sequence[Position | RaftwoodError]) -> bytes:
    errors = {
        place: encode_error(each)
        for place, each in enumerate(results)
        if isinstance(each, RaftwoodError)
    }
    positions = [
        bytes(16) if isinstance(each, RaftwoodError) else position_to_bytes(each)
        for each in results
    ]
    return _encode(_AppendAnswer(b"".join(positions), errors))


def decode_appended(payload: Payload) -> list[Position | RaftwoodError]:
    try:
        answer = _decode_answer(payload)
    except _UNREADABLE as error:
        raise ProtocolError(f"the answer to a forwarded append cannot be read: {error}") from error
    if len(answer.positions) % 16:
        raise ProtocolError("the positions of a forwarded append are cut off")
    found: list[Position | RaftwoodError] = [
        position_from_bytes(answer.positions[at : at + 16])
        for at in range(0, len(answer.positions), 16)
    ]
    for place, encoded in answer.errors.items():
        if not 0 <= place < len(found):
            raise ProtocolError(f"an answer has an error for batch {place} of {len(found)}")
        found[place] = decode_error(encoded)
    return found


REQUEST_BYTES_MAX: Final = 4 << 20
"""The size of one request, unless a single batch is larger."""
_BACKOFF: Final = Backoff(first_ms=20, longest_ms=500)
_LIMITS: Final = ClientLimits(
    connect_timeout_ms=2_000, ping_interval_ms=2_000, ping_timeout_ms=2_000
)


class PeerNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """How the processes that share logs authenticate to one another."""

    cluster: str
    secret: Secret
    server_role: str
    """The role of owners as servers; their names are those in the records."""
    tls: ClientTls | None = None


_Waiting = list[tuple[AppendRequest, "asyncio.Future[Position]"]]


class DlogPeers:
    """Use `close` when done; `gone` receives an owner whose process has ended."""

    def __init__(
        self,
        environment: Environment,
        network: PeerNetwork,
        name: str,
        gone: Callable[[LogOwner], None],
    ) -> None:
        self._environment = environment
        self._network = network
        self._name = name
        self._gone = gone
        self._channels: dict[LogOwner, Channel] = {}
        self._waiting: dict[tuple[LogOwner, str], _Waiting] = {}
        self._closing: dict[asyncio.Task[None], None] = {}

    async def connected(self, owner: LogOwner, timeout_ms: int) -> None:
        """Waits for a connection; raises `Unavailable` if the owner cannot be reached."""
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
        self, owner: LogOwner, log: str, batch: AppendRequest, timeout_ms: int
    ) -> "asyncio.Future[Position]":
        """Sends a batch together with all others of this loop turn for the log."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush, timeout_ms)
        future: asyncio.Future[Position] = loop.create_future()
        self._waiting.setdefault((owner, log), []).append((batch, future))
        return future

    async def tail(self, owner: LogOwner, request: TailRequest, timeout_ms: int) -> Tail:
        return await self._channel(owner).ask(TAIL, request, timeout_ms)

    async def seal(self, owner: LogOwner, log: str, timeout_ms: int) -> Position:
        return position_from_bytes(
            await self._channel(owner).ask(SEAL, LogRequest(log), timeout_ms)
        )

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        if self._closing:
            await asyncio.wait(list(self._closing))

    # Connections

    def _channel(self, owner: LogOwner) -> Channel:
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

    async def _dial(self, owner: LogOwner) -> Connection:
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

    def _ended(self, owner: LogOwner) -> None:
        self.forget(owner)
        self._gone(owner)

    def forget(self, owner: LogOwner) -> None:
        """Closes the connection to a process that owns nothing any more."""
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
                size += each[0].size
                if group and (size > REQUEST_BYTES_MAX or len(group) >= BATCHES_MAX):
                    self._send(owner, log, group, timeout_ms)
                    size, group = each[0].size, _Waiting()
                group.append(each)
            self._send(owner, log, group, timeout_ms)

    def _send(self, owner: LogOwner, log: str, batches: _Waiting, timeout_ms: int) -> None:
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
