"""`BookieServer`: a bookie on the network and on the list of those that run.

Takes all it needs from its arguments, so that it runs in simulation as well.
"""

from contextlib import AsyncExitStack
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import Unavailable
from raftwood.base.metrics import Metrics
from raftwood.base.seams import MetaStore
from raftwood.base.sections import ConnectionSettings
from raftwood.disk.segment_log import LogSettings
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.bookie_metrics import show_bookie
from raftwood.dlog.bookie.garbage import GarbageCollector
from raftwood.dlog.bookie.membership import admit, note_limbo
from raftwood.dlog.bookie.meta_ledgers import MetaLedgers, next_ledger
from raftwood.dlog.bookie.registration import Registration
from raftwood.dlog.bookie.service import BookieService
from raftwood.dlog.bookie.settings import BookieSettings
from raftwood.dlog.bookie.wire import bookie_identity
from raftwood.dlog.ledgers.model import BookieId
from raftwood.net import (
    Identity,
    Secret,
    Server,
    ServerCredentials,
    ServerLimits,
    ServerTls,
    Service,
)
from raftwood.net.store_names import split_address

DRAIN_MS: Final = 2_000


class BookieNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """Where a bookie listens, and how its clients prove themselves."""

    listen: str
    """HOST:PORT"""
    secrets: dict[str, Secret]
    """By role."""
    tls: ServerTls | None = None
    connections: ConnectionSettings = ConnectionSettings()

    def secret_of(self, peer: Identity) -> Secret | None:
        return self.secrets.get(peer.role)


class BookieServer:
    """Use `start`, and `close` when done; the metastore stays its owner's."""

    def __init__(self, bookie: Bookie, registration: Registration, stack: AsyncExitStack) -> None:
        self.bookie = bookie
        self._registration = registration
        self._stack = stack

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: BookieSettings,
        store: MetaStore,
        *,
        cluster: str,
        network: BookieNetwork | None,
        metrics: Metrics | None = None,
        log_settings: LogSettings | None = None,
        id_: str | None = None,
        begins_anew: bool = False,
    ) -> "BookieServer":
        """Open the folder, make sure that it is the one of this id, listen, and register.

        Under an `id_` of its own, it may be reached at another address each time; without a
        network, it serves this process alone.
        """
        bookie_id = BookieId(id_ or settings.id)
        stack = AsyncExitStack()
        try:
            bookie = await Bookie.open(
                environment,
                settings.data_folder,
                cluster=cluster,
                id_=bookie_id,
                settings=log_settings,
                waits_max=settings.waits_max,
            )
            stack.push_async_callback(bookie.close)

            async def begin_anew() -> None:
                end = await next_ledger(store)
                # The note is there before the bookie has doubts, for these end where it is gone; if
                # the bookie dies in between, it begins anew once more, and writes another one.
                await note_limbo(store, bookie_id, end)
                await bookie.enter_limbo(end)

            await admit(
                store,
                bookie_id,
                instance=bookie.instance,
                holds_ledgers=bool(bookie.ledgers()),
                begin_anew=begin_anew if begins_anew else None,
            )
            if metrics is not None:
                show_bookie(metrics, bookie)
            if network is not None:
                server = await _listening(environment, cluster, bookie, network)
                stack.push_async_callback(server.close, DRAIN_MS)
                if metrics is not None:
                    server.admission.count_in(metrics, "bookie")
            ledgers = MetaLedgers(store, environment.random)
            stack.push_async_callback(ledgers.close)
            collector = GarbageCollector(bookie, ledgers, interval_ms=settings.garbage_interval_ms)
            collector.start()
            stack.push_async_callback(collector.close)
            registration = Registration(
                store,
                bookie,
                rack=settings.rack,
                lease_ms=settings.lease_ms,
                address=network.listen if id_ and network else "",
            )
            # Closed before all else: a bookie that is about to stop is not offered any more.
            stack.push_async_callback(registration.close)
            await registration.start()
        except BaseException:
            await stack.aclose()
            raise
        return cls(bookie, registration, stack)

    def problem(self) -> str:
        """Why it is of little use at the moment; empty where it is."""
        if self._registration.problem:
            return f"it is not registered: {self._registration.problem}"
        return (
            "it takes no entries: its disk is full or failing" if self.bookie.is_read_only else ""
        )

    async def close(self) -> None:
        """Leave the list, answer what is under way, then stop."""
        await self._stack.aclose()


async def _listening(
    environment: Environment, cluster: str, bookie: Bookie, network: BookieNetwork
) -> Server:
    service = Service()
    BookieService(bookie).register(service)
    credentials = ServerCredentials(
        cluster_id=cluster, identity=bookie_identity(bookie.id), secret_of=network.secret_of
    )
    limits = ServerLimits(connections=network.connections)
    server = Server(service, credentials, environment.random, limits)
    host, port = split_address(network.listen)
    try:
        await server.listen(host, port, tls=network.tls)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {network.listen}: {error.strerror or error}; set bookie.listen to "
            "an address of this machine that is free"
        ) from error
    return server
