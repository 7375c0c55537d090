"""Which metastore a command works on: exactly one of the options that name one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.connecting import connected_client
from raftwood.app.groups import METASTORE_GROUP
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.base.seams import MetaStore
from raftwood.metastore.file_store import FileMetaStore
from raftwood.metastore.raft_store import RaftMetaStore


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """The options; each is another kind of metastore."""

    file: Annotated[str | None, Parameter(help="The folder of a metastore.")] = None
    connect: Annotated[
        str | None,
        Parameter(help="The metastore of a cluster, by some of its stores: HOST:PORT[,HOST:PORT]."),
    ] = None
    source: Source = DEFAULTS


NOWHERE = Where()


@asynccontextmanager
async def opened(environment: Environment, where: Where) -> AsyncIterator[MetaStore]:
    """The metastore that was named, until the end of the block."""
    match where:
        case Where(file=str(folder), connect=None):
            file_store = await FileMetaStore.open(environment, folder)
            try:
                yield file_store
            finally:
                await file_store.close()
        case Where(file=None, connect=str(addresses)):
            settings = where.source.load().settings
            async with connected_client(environment, settings, addresses) as client:
                yield RaftMetaStore(client, METASTORE_GROUP)
        case _:
            raise InvalidInput("name one metastore: either --file FOLDER or --connect HOST:PORT")
