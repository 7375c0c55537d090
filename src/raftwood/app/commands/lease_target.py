"""Where a command finds a group's leases: the options, and the store that they name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

from raftwood.app.commands.source import Source
from raftwood.app.connecting import connected_metastore
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration
from raftwood.loghub.consumer.lease_store import LeaseStore
from raftwood.loghub.consumer.leases import signature
from raftwood.loghub.consumer.stores.meta import MetaLeaseStore

META_SCHEME: Final = "meta://"


@Parameter(name="*")
@dataclass(frozen=True)
class LeaseTarget:
    """Which store of leases."""

    store: Annotated[
        str,
        Parameter(
            help="Where the workers of a group keep their leases: sqlite:///FILE, "
            "postgresql://USER:PASSWORD@HOST/DATABASE, mysql://…, or meta://HOST:PORT[,…] for the "
            "metastore of a cluster. The same for all of them.",
        ),
    ] = "sqlite:///raftwood-leases.sqlite"


LEASES = LeaseTarget()


@asynccontextmanager
async def lease_store(
    environment: Environment, target: LeaseTarget, source: Source, *, stream: str, group: str
) -> AsyncIterator[LeaseStore]:
    """The store of one group on one logstore; it is opened and closed by whoever uses it."""
    project, _, logstore = stream.partition("/")
    sig = signature(project, logstore)
    if target.store.startswith(META_SCHEME):
        addresses = target.store.removeprefix(META_SCHEME)
        settings = source.load().settings
        async with connected_metastore(environment, settings, addresses) as metastore:
            yield MetaLeaseStore(environment, metastore, group=group, signature=sig)
        return
    try:
        from raftwood.loghub.consumer.stores.sql import SqlLeaseStore  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"{error.name} is not installed: pip install 'raftwood[sql]'"
        ) from error
    yield SqlLeaseStore(environment, target.store, group=group, signature=sig)
