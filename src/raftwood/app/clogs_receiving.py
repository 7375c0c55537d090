"""The receiver of a gateway: from the settings to what it stores to and where it serves."""

from typing import Final

from raftwood.app.clogs_sink import Routes, StreamSink
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import Unavailable
from raftwood.base.metrics import Metrics
from raftwood.clogs.receiver.receiver import DRAIN_MS, Receiver, ReceiverLimits
from raftwood.clogs.settings import parsed_routes
from raftwood.clogs.wire import KEY_ROLE
from raftwood.loghub.server.gateway import Gateway
from raftwood.net import Identity, Secret, ServerTls

_REMEDY: Final = "set clogs.listen to an address of this machine that is free, or to nothing"


class ReceiverServer:
    """Use `start`, and `close` when done; the gateway is its owner's."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.address = ""
        """Where shippers are served."""

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: Settings,
        gateway: Gateway,
        *,
        metrics: Metrics,
        tls: ServerTls | None,
    ) -> "ReceiverServer":
        clogs = settings.clogs

        def secret_of(peer: Identity) -> Secret | None:
            key = gateway.access.key(peer.node_id) if peer.role == KEY_ROLE else None
            return None if key is None else Secret(key.secret.encode())

        receiver = Receiver(
            environment,
            StreamSink(gateway, Routes(parsed_routes(clogs))),
            secret_of=secret_of,
            limits=ReceiverLimits(
                batches_max=clogs.batches_max,
                bytes_max=clogs.bytes_max,
                connections_max=clogs.connections_max,
            ),
            metrics=metrics,
        )
        started = cls(receiver)
        try:
            started.address = await _listen(receiver, clogs.listen, tls)
        except BaseException:
            await started.close(drain_ms=0)
            raise
        return started

    async def close(self, *, drain_ms: int = DRAIN_MS) -> None:
        """Answer what is under way, within its time, then stop."""
        await self._receiver.close(drain_ms=drain_ms)


async def _listen(receiver: Receiver, address: str, tls: ServerTls | None) -> str:
    host, _, port = address.rpartition(":")
    name = host.strip("[]")
    try:
        bound = await receiver.listen(name, int(port), tls=tls)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {address}: {error.strerror or error}; {_REMEDY}"
        ) from error
    return f"{host}:{bound}"
