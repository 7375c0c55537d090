"""The table that whoever starts a cluster on this machine finds, and the user of it.

The folder keeps the password, so that it is the same after a restart.
"""

import asyncio
import os
from typing import Final

from raftwood.app.kv_users import new_user
from raftwood.app.parts import KvPart, write_privately
from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded
from raftwood.base.logs import get_logger
from raftwood.zeppelin.meta.client import MetaClient
from raftwood.zeppelin.meta.deltas import applied
from raftwood.zeppelin.model import EPOCH_NONE, TableConfig, Topology
from raftwood.zeppelin.passwords import is_password

NAME: Final = "default"
"""Of the table, and of the user: the one that clients of Redis are who give a password alone."""
LOGIN_FILE: Final = "kv-login"
SERVED_S_MAX: Final = 60.0
_PARTITIONS_PER_NODE: Final = 4
_log = get_logger("zeppelin")


def node_addresses(data: str) -> tuple[str, ...]:
    """Settings of a node on this machine; it tells the others where else it is reached."""
    return (
        f"zeppelin_node.listen={data}",
        "zeppelin_node.replication_listen=127.0.0.1:0",
        "zeppelin_node.admin_listen=127.0.0.1:0",
    )


async def default_part(
    environment: Environment, folder: str, meta: MetaClient, *, nodes: int, address: str
) -> KvPart:
    """How to use the table, once it is served; it is made where it is not there."""
    config = TableConfig(
        partitions=_PARTITIONS_PER_NODE * nodes,
        replicas=min(3, nodes),
        # Where there is one node, nobody else could become master meanwhile.
        on_meta_loss="serve" if nodes == 1 else "stop",
    )
    topology = await meta.topology()
    if NAME not in topology.tables:
        await meta.create_table(NAME, config)
    password = await _password(environment, f"{folder}/{LOGIN_FILE}", meta)
    await until_served(meta, NAME)
    host, _, port = address.rpartition(":")
    return KvPart(host=host, port=int(port), user=NAME, password=password)


async def _password(environment: Environment, file: str, meta: MetaClient) -> str:
    """That of the folder; a new one where there is none yet, or another one was set."""
    known = (await meta.topology()).users.get(NAME)
    kept = _kept(file)
    if known is not None and kept and is_password(kept.encode(), known.password_hash):
        return kept
    user, password = new_user(environment, NAME, NAME, may_write=True)
    write_privately(file, password.encode())
    if known is None:
        await meta.add_user(user)
    else:
        _log.warning("the password of user default is not known here, and is changed")
        await meta.set_password(NAME, user.password_hash)
    return password


def _kept(file: str) -> str:
    if not os.path.exists(file):
        return ""
    with open(file, encoding="utf-8") as opened:
        return opened.read()


async def until_served(meta: MetaClient, table: str) -> None:
    """Until all its partitions have masters, and nodes know it."""
    topology = Topology()
    try:
        async with asyncio.timeout(SERVED_S_MAX):
            async for delta in meta.watch(EPOCH_NONE):
                topology = applied(topology, delta)
                partitions = topology.tables[table].partitions
                if all(each.master is not None for each in partitions):
                    break
            await meta.wait_applied(topology.epoch)
    except TimeoutError:
        raise DeadlineExceeded(
            f"table {table} was not served in {SERVED_S_MAX:g} s: see `raftwood kv status`"
        ) from None
