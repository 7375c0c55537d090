"""Where a command finds a group's leases: the options, and the store that they name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from raftwood.base.environment import Environment
from raftwood.cli.options import Source
from raftwood.loghub.consumer.leases import LeaseStore
from raftwood.server.clients import opened_lease_store


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


@asynccontextmanager
async def lease_store(
    environment: Environment, target: LeaseTarget, source: Source, *, stream: str, group: str
) -> AsyncIterator[LeaseStore]:
    """The store of one group on one logstore; a worker opens it and closes it."""
    project, _, logstore = stream.partition("/")
    async with opened_lease_store(
        environment,
        source.load().settings,
        target.store,
        project=project,
        logstore=logstore,
        group=group,
    ) as store:
        yield store
