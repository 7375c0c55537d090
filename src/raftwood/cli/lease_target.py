"""Where a command finds a group's leases: the options, and the store that they name."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final

from cyclopts import Parameter

from raftwood.base.configuration import CONTEXT_ORIGIN, Configuration
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration
from raftwood.cli.options import Source
from raftwood.loghub.consumer.leases import LeaseStore, signature
from raftwood.loghub.consumer.meta_store import MetaLeaseStore
from raftwood.server.cluster_client import connected_metastore
from raftwood.server.settings import Settings

META_SCHEME: Final = "meta://"
DEFAULT_FILE: Final = "raftwood-leases.sqlite"
DEFAULT_STORE: Final = f"sqlite:///{DEFAULT_FILE}"


@Parameter(name="*")
@dataclass(frozen=True)
class LeaseTarget:
    """Which store of leases."""

    store: Annotated[
        str | None,
        Parameter(
            help="Where the workers of a group keep their leases: sqlite:///FILE, "
            "postgresql://USER:PASSWORD@HOST/DATABASE, mysql://…, or meta://HOST:PORT[,…] for the "
            "metastore of a cluster; the same for all of them. Else loghub_client.lease_store, in "
            "the file or as RAFTWOOD_LOGHUB_CLIENT__LEASE_STORE; else a file in this folder.",
        ),
    ] = None


LEASES = LeaseTarget()


def store_url(target: LeaseTarget, configuration: Configuration[Settings]) -> str:
    """Which store is meant: by the option, else by the settings, else the file in this folder."""
    setting = "loghub_client.lease_store"
    is_of_context = configuration.origin(setting).startswith(CONTEXT_ORIGIN)
    if not target.store and is_of_context and os.path.exists(DEFAULT_FILE):
        # Groups whose checkpoints are here go on: release 0.1.0 had no contexts.
        return DEFAULT_STORE
    return (
        target.store or configuration.settings.loghub_client.lease_store.reveal() or DEFAULT_STORE
    )


@asynccontextmanager
async def lease_store(
    environment: Environment, target: LeaseTarget, source: Source, *, stream: str, group: str
) -> AsyncIterator[LeaseStore]:
    """The store of one group on one logstore; it is opened and closed by whoever uses it."""
    project, _, logstore = stream.partition("/")
    sig = signature(project, logstore)
    configuration = source.load()
    settings, url = configuration.settings, store_url(target, configuration)
    if url.startswith(META_SCHEME):
        addresses = url.removeprefix(META_SCHEME)
        async with connected_metastore(environment, settings, addresses) as metastore:
            yield MetaLeaseStore(environment, metastore, group=group, signature=sig)
        return
    try:
        from raftwood.loghub.consumer.sql_store import SqlLeaseStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"{error.name} is not installed: pip install 'raftwood[sql]'"
        ) from error
    yield SqlLeaseStore(environment, url, group=group, signature=sig)
