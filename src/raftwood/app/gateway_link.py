"""A connection to whichever gateway answers, for commands: a call at a time."""

from collections.abc import Sequence
from typing import Any, Final, Self, TypeVar

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, RaftwoodError, Unauthenticated, Unavailable
from raftwood.base.position import Position, position_from_bytes, position_to_bytes
from raftwood.loghub.controls import AnyControl, decode_control_answer, encode_control
from raftwood.loghub.model import Shard
from raftwood.loghub.wire import (
    CLUSTER,
    CONTROL,
    CURSOR,
    DESCRIBE,
    KEY_ROLE,
    PULL,
    SHARDS,
    CursorRequest,
    Pulled,
    PullRequest,
    ShardDetail,
    StreamRequest,
    decode_pulled,
    encode_pull,
)
from raftwood.net import (
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
from raftwood.net.store_names import split_address

TIMEOUT_MS: Final = 60_000
"""Of a call: a split, or a logstore of many shards, makes logs."""
_ROUNDS_MAX: Final = 5
_LIMITS: Final = ClientLimits(
    connect_timeout_ms=3_000, ping_interval_ms=2_000, ping_timeout_ms=4_000
)

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class GatewayLink:
    """Use it as a context manager. Where its gateway is lost, questions go to another one."""

    def __init__(
        self,
        environment: Environment,
        gateways: Sequence[str],
        *,
        key: str,
        secret: str,
        tls: ClientTls | None = None,
    ) -> None:
        if not gateways:
            raise InvalidInput("name a gateway: --gateways HOST:PORT, or loghub_client.gateways")
        self._environment = environment
        self._addresses = [split_address(each) for each in gateways]
        self._tls = tls
        self._credentials = ClientCredentials(
            cluster_id=CLUSTER,
            identity=Identity(role=KEY_ROLE, node_id=key),
            secret=Secret(secret.encode()),
        )
        self._connection: Connection | None = None
        self._turn = environment.random.randrange(len(gateways))

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection is not None:
            await self._connection.close()

    # Calls

    async def control(self, control: AnyControl) -> Any:
        """As the call's `answer` says. It is sent once: where the answer is lost, who knows."""
        connection = await self._connected()
        answer = await connection.call(CONTROL, encode_control(control), TIMEOUT_MS)
        return decode_control_answer(control, answer)

    async def shards(self, project: str, logstore: str) -> list[Shard]:
        return await self._ask(SHARDS, StreamRequest(project, logstore))

    async def describe(self, project: str, logstore: str) -> list[ShardDetail]:
        return await self._ask(DESCRIBE, StreamRequest(project, logstore))

    async def cursor(self, project: str, logstore: str, shard: int, at: int | str) -> Position:
        """Of a shard's `begin` or `end`, or of a time in seconds since 1970."""
        request = CursorRequest(project, logstore, shard, at)
        return position_from_bytes(await self._ask(CURSOR, request))

    async def pull(
        self,
        project: str,
        logstore: str,
        shard: int,
        start: Position,
        *,
        batches_max: int,
        bytes_max: int,
        wait_ms: int = 0,
    ) -> Pulled:
        request = PullRequest(
            project, logstore, shard, position_to_bytes(start), batches_max, bytes_max, wait_ms
        )
        answer = await self._repeated(PULL, encode_pull(request), TIMEOUT_MS + wait_ms)
        return decode_pulled(answer)

    async def _ask(self, method: TypedMethod[_Request, _Response], request: _Request) -> _Response:
        answer = await self._repeated(method, method.encode(request), TIMEOUT_MS)
        return method.decode_response(answer)

    async def _repeated(self, method: Method, payload: bytes, timeout_ms: int) -> Payload:
        """A question, which changes nothing, may be asked again."""
        for _ in range(_ROUNDS_MAX):
            connection = await self._connected()
            try:
                return await connection.call(method, payload, timeout_ms)
            except Unavailable:
                if connection.is_usable:
                    raise
        raise Unavailable("gateways are lost as fast as they are found: look at their logs")

    # The connection

    async def _connected(self) -> Connection:
        known = self._connection
        if known is not None and known.is_usable:
            return known
        if known is not None:
            await known.close()
        errors: list[RaftwoodError] = []
        for _ in self._addresses:
            host, port = self._addresses[self._turn % len(self._addresses)]
            try:
                self._connection = await connect(
                    host,
                    port,
                    self._credentials,
                    self._environment.random,
                    limits=_LIMITS,
                    tls=self._tls,
                )
            except RaftwoodError as error:
                errors.append(error)
                self._turn += 1
            else:
                return self._connection
        raise _reason(errors)


def _reason(errors: Sequence[RaftwoodError]) -> RaftwoodError:
    for error in errors:
        if isinstance(error, Unauthenticated):
            return Unauthenticated(
                f"the gateway does not accept the access key: {error.message}. "
                "`raftwood key list` shows the keys that there are"
            )
    reasons = "; ".join(error.message for error in errors)
    return Unavailable(f"no gateway answers: {reasons}. Is one started?")
