"""`raftwood cluster up`: stores, bookies, gateways and nodes as processes on this machine."""

import os
from typing import Annotated

from cyclopts import Parameter

from raftwood.app.event_loop import run
from raftwood.app.local_cluster import LocalCluster, running_cluster
from raftwood.app.parts import tell_parts, write_parts
from raftwood.app.process import stop_on_signals
from raftwood.app.settings import Settings
from raftwood.app.standalone import PORT_BASE
from raftwood.base.environment import Environment
from raftwood.base.logs import set_up_logs
from raftwood.disk.real_environment import real_environment


def up(
    *,
    stores: Annotated[int, Parameter(help="How many stores; three or more survive a loss.")] = 3,
    gateways: Annotated[int, Parameter(help="How many gateways.")] = 1,
    bookies: Annotated[
        int, Parameter(help="How many bookies, for logstores that are kept in DLOG; 0: none.")
    ] = 3,
    kv_nodes: Annotated[
        int, Parameter(help="How many nodes of Zeppelin, for keys and values; 0: none.")
    ] = 3,
    data: Annotated[str, Parameter(help="Folder that keeps everything.")] = "raftwood-cluster",
    port_base: Annotated[
        int, Parameter(help="The first of the ports, all on this machine's loopback address.")
    ] = PORT_BASE,
    ready_file: Annotated[
        str | None,
        Parameter(help="Written once all is ready: JSON, with a part for each service."),
    ] = None,
) -> None:
    """Run a cluster of processes on this machine until SIGTERM or SIGINT.

    The same as `raftwood standalone`, each part in a process of its own: what one of them does is
    not stopped by the end of another. Their log lines stand in the folder. What was written is
    there when it is started again with the same folder.
    """
    cluster = LocalCluster(
        os.path.abspath(data),
        stores=stores,
        gateways=gateways,
        bookies=bookies,
        kv_nodes=kv_nodes,
        port_base=port_base,
    )
    settings = cluster.prepare()
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        run(_serve(environment, cluster, settings, ready_file))


async def _serve(
    environment: Environment, cluster: LocalCluster, settings: Settings, ready_file: str | None
) -> None:
    stop = stop_on_signals(environment)
    async with running_cluster(environment, cluster, settings) as (parts, _):
        tell_parts(cluster.folder, parts)
        if ready_file is not None:
            write_parts(ready_file, parts)
        await stop.wait()
