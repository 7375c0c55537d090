"""Bookies in one process, local or over the (real or simulated) network, that can be restarted."""

from collections.abc import Mapping

from raftwood.base.environment import Environment
from raftwood.base.seams import MetaStore
from raftwood.disk.segment_log import LogSettings
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.local_bookies import LocalBookies
from raftwood.dlog.bookie.remote_bookies import RemoteBookies
from raftwood.dlog.bookie.server import BookieNetwork, BookieServer
from raftwood.dlog.bookie.settings import BookieClientSettings, BookieSettings
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.seams import Bookies
from raftwood.net import Secret
from raftwood.net.identity import CLIENT_ROLE, READER_ROLE
from raftwood.net.stores import ClientNetwork

CLUSTER = "bookies"
SECRET = Secret(b"a secret of the clients")
READER_SECRET = Secret(b"a secret of the readers")
SMALL = LogSettings(segment_bytes=64 << 10, cache_bytes_max=0, full_retry_ms=50)
QUICK = BookieClientSettings(connect_timeout_ms=1_000, request_timeout_ms=2_000)


def client_network(*, role: str = CLIENT_ROLE, secret: Secret = SECRET) -> ClientNetwork:
    return ClientNetwork(cluster=CLUSTER, secret=secret, role=role)


class BookieServers:
    """Each in a folder of its own below one; ids are addresses where there is a network."""

    def __init__(
        self,
        environment: Environment,
        store: MetaStore,
        folder: str,
        ids: list[str],
        *,
        is_remote: bool,
        log_settings: LogSettings = SMALL,
    ) -> None:
        self.ids = [BookieId(each) for each in ids]
        self._environment = environment
        self._store = store
        self._folder = folder
        self._is_remote = is_remote
        self._log_settings = log_settings
        self.running: dict[BookieId, BookieServer] = {}
        self._local: dict[BookieId, Bookie] = {}
        self._anew: dict[BookieId, int] = {}
        """How often a bookie has begun anew, each time in another folder."""

    @property
    def local(self) -> Mapping[BookieId, Bookie]:
        return self._local

    def folder_of(self, id_: BookieId) -> str:
        times = self._anew.get(id_, 0)
        return f"{self._folder}/bookie-{self.ids.index(id_)}" + (f"-{times}" if times else "")

    async def start(self, id_: BookieId, *, begins_anew: bool = False) -> BookieServer:
        settings = BookieSettings(
            data_folder=self.folder_of(id_), rack=f"rack-{self.ids.index(id_)}", lease_ms=2_000
        )
        network = BookieNetwork(
            listen=id_, secrets={CLIENT_ROLE: SECRET, READER_ROLE: READER_SECRET}
        )
        server = await BookieServer.start(
            self._environment,
            settings,
            self._store,
            cluster=CLUSTER,
            network=network if self._is_remote else None,
            log_settings=self._log_settings,
            id_=id_,
            begins_anew=begins_anew,
        )
        self.running[id_] = server
        self._local[id_] = server.bookie
        return server

    async def start_anew(self, id_: BookieId) -> BookieServer:
        """In an empty folder, under its old id."""
        self._anew[id_] = self._anew.get(id_, 0) + 1
        return await self.start(id_, begins_anew=True)

    async def start_all(self) -> None:
        for id_ in self.ids:
            await self.start(id_)

    async def stop(self, id_: BookieId) -> None:
        self._local.pop(id_, None)
        await self.running.pop(id_).close()

    def hide(self, id_: BookieId) -> None:
        """Clients in this process reach the bookie no more, until it is started again."""
        del self._local[id_]

    def replace(self, id_: BookieId, bookie: Bookie) -> None:
        """What this process takes for the bookie from now on."""
        self._local[id_] = bookie

    def client(self) -> Bookies:
        if self._is_remote:
            return RemoteBookies(self._environment, client_network(), QUICK)
        return LocalBookies(self.local, timeout_ms=QUICK.request_timeout_ms)

    async def close(self) -> None:
        for id_ in list(self.running):
            await self.stop(id_)
