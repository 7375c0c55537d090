"""Where a command finds a group's leases: the options, and the store that they name."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from raftwood.base.configuration import CONTEXT_ORIGIN, Configuration
from raftwood.base.environment import Environment
from raftwood.cli.options import Source
from raftwood.loghub.consumer.leases import LeaseStore
from raftwood.server.clients import DEFAULT_LEASES, LEASE_FILE, lease_url, opened_lease_store
from raftwood.server.settings import Settings


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
    if not target.store and is_of_context and os.path.exists(LEASE_FILE):
        # Groups whose checkpoints are here go on: release 0.1.0 had no contexts.
        return DEFAULT_LEASES
    return lease_url(configuration.settings, target.store)


@asynccontextmanager
async def lease_store(
    environment: Environment, target: LeaseTarget, source: Source, *, stream: str, group: str
) -> AsyncIterator[LeaseStore]:
    """The store of one group on one logstore; a worker opens it and closes it."""
    project, _, logstore = stream.partition("/")
    configuration = source.load()
    async with opened_lease_store(
        environment,
        configuration.settings,
        store_url(target, configuration),
        project=project,
        logstore=logstore,
        group=group,
    ) as store:
        yield store
