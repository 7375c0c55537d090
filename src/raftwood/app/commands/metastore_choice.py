"""Which metastore a command works on: the one that an option names, else the cluster's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.connecting import connected_metastore
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.base.seams import MetaStore
from raftwood.metastore.file_store import FileMetaStore


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """The options; each is another kind of metastore."""

    file: Annotated[str | None, Parameter(help="The folder of a metastore.")] = None
    connect: Annotated[
        str | None,
        Parameter(
            help="The metastore of a cluster, by some of its stores: HOST:PORT[,HOST:PORT]; "
            "without any of these options, by cluster.members."
        ),
    ] = None
    zookeeper: Annotated[
        str | None,
        Parameter(help="A metastore in ZooKeeper: HOST:PORT[,HOST:PORT][/chroot]."),
    ] = None
    source: Source = DEFAULTS


NOWHERE = Where()


@asynccontextmanager
async def opened(environment: Environment, where: Where) -> AsyncIterator[MetaStore]:
    """The metastore that was named, until the end of the block."""
    if where.file is None and where.zookeeper is None:
        settings = where.source.load().settings
        if where.connect is not None or settings.cluster.members:
            async with connected_metastore(environment, settings, where.connect) as found:
                yield found
            return
    store = await _open(environment, where)
    try:
        yield store
    finally:
        await store.close()


async def _open(environment: Environment, where: Where) -> MetaStore:
    match where:
        case Where(file=str(folder), connect=None, zookeeper=None):
            return await FileMetaStore.open(environment, folder)
        case Where(file=None, connect=None, zookeeper=str(address)):
            return await _open_zookeeper(environment, address)
    raise InvalidInput(
        "name one metastore: --file FOLDER, --connect HOST:PORT or --zookeeper HOST:PORT/CHROOT; "
        "or set cluster.members"
    )


async def _open_zookeeper(environment: Environment, address: str) -> MetaStore:
    try:
        from raftwood.metastore.zookeeper_store import ZooKeeperMetaStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kazoo":
            raise
        raise Unavailable(
            "--zookeeper needs kazoo: install it with pip install 'raftwood[zookeeper]'"
        ) from None
    return await ZooKeeperMetaStore.open(environment, address)
