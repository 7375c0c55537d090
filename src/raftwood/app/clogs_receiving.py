"""The receiver of a gateway: from the settings to what it stores to and where it serves."""

from collections.abc import Awaitable, Callable

from raftwood.app.clogs_files import PlainFiles, StreamsAndFiles, lines_of
from raftwood.app.clogs_sink import Routes, StreamSink
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import Unavailable
from raftwood.base.metrics import Metrics
from raftwood.clogs.configuration.serving import ConfigurationService
from raftwood.clogs.receiver.datagram_listener import DatagramListener
from raftwood.clogs.receiver.file_sink import FileSink
from raftwood.clogs.receiver.receiver import DRAIN_MS, Receiver, ReceiverLimits
from raftwood.clogs.seams import Sink
from raftwood.clogs.settings import ClogsSettings, parsed_routes
from raftwood.clogs.wire import (
    CONFIGURATION,
    KEY_ROLE,
    ConfigurationAnswer,
    ConfigurationRequest,
)
from raftwood.loghub.server.gateway import Gateway
from raftwood.net import Call, Identity, Secret, ServerTls, Service


class ReceiverServer:
    """Use `start`, and `close` when done; the gateway is its owner's."""

    def __init__(
        self, receiver: Receiver, configuration: ConfigurationService, files: FileSink | None
    ) -> None:
        self._receiver = receiver
        self._files = files
        self._configuration = configuration
        self._datagrams: DatagramListener | None = None
        self.address = ""
        """Where shippers are served."""
        self.udp_address = ""
        """Where datagrams are taken; empty where they are not."""

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

        files: FileSink | None = None
        if clogs.files_folder:
            files = await FileSink.open(environment, clogs.files_folder, lines_of)
        configuration = ConfigurationService(gateway.metadata.store)

        async def configured(_: Call, request: ConfigurationRequest) -> ConfigurationAnswer:
            return await configuration.answer(request)

        service = Service()
        service.typed(CONFIGURATION, configured)
        receiver = Receiver(
            environment,
            _sink(gateway, clogs, files),
            secret_of=secret_of,
            limits=ReceiverLimits(
                batches_max=clogs.batches_max,
                bytes_max=clogs.bytes_max,
                connections_max=clogs.connections_max,
                connections=settings.connections,
            ),
            metrics=metrics,
            service=service,
        )
        started = cls(receiver, configuration, files)
        try:
            await configuration.start()
            started.address = await _listen(
                clogs.listen, lambda host, port: receiver.listen(host, port, tls=tls)
            )
            if clogs.udp_listen:
                started._datagrams = DatagramListener(
                    receiver, secret=clogs.udp_secret.reveal().encode(), key=clogs.udp_access_key
                )
                started.udp_address = await _listen(clogs.udp_listen, started._datagrams.listen)
        except BaseException:
            await started.close(drain_ms=0)
            raise
        return started

    async def close(self, *, drain_ms: int = DRAIN_MS) -> None:
        """Answer what is under way, within its time, then stop."""
        await self._configuration.close()  # whoever waits for a change is answered
        if self._datagrams is not None:
            await self._datagrams.close()
        await self._receiver.close(drain_ms=drain_ms)
        if self._files is not None:
            await self._files.close()


def _sink(gateway: Gateway, settings: ClogsSettings, files: FileSink | None) -> Sink:
    routes = Routes(parsed_routes(settings))
    streams = StreamSink(gateway, routes)
    if files is None:
        return streams
    if settings.store == "files":
        return PlainFiles(gateway, routes, files)
    return StreamsAndFiles(streams, files)


async def _listen(address: str, listen: Callable[[str, int], Awaitable[int]]) -> str:
    host, _, port = address.rpartition(":")
    try:
        bound = await listen(host.strip("[]"), int(port))
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {address}: {error.strerror or error}; set clogs.listen and "
            "clogs.udp_listen to addresses of this machine that are free, or to nothing"
        ) from error
    return f"{host}:{bound}"
