"""Whose data folder it is, and who knows what its log refers to: for `raftwood store check`."""

from functools import partial

from raftwood.clogs.client.spool import CLUSTER as SPOOL
from raftwood.clogs.client.spool import check_spool
from raftwood.disk.inspection import FolderContent, RoleCheck, plain_store
from raftwood.disk.kv_folders import RocksFolders
from raftwood.dlog.bookie.inspection import check_bookie
from raftwood.metastore.file_store import CLUSTER as METASTORE
from raftwood.metastore.file_store import check_file_store
from raftwood.raft.host.inspection import check_raft_store, is_raft_store
from raftwood.zeppelin.node.engine_home import ENGINES_FOLDER
from raftwood.zeppelin.node.inspection import check_node, is_node

_NUMBERLESS = 0
"""The number in the identity of bookies and nodes, which have none."""


def role_of(content: FolderContent) -> RoleCheck:
    """By what is in the folder first: a cluster of stores may have any name."""
    identity = content.identity
    if identity is not None and identity.store == _NUMBERLESS:
        if is_node(content):
            engines = RocksFolders(f"{content.path}/{ENGINES_FOLDER}")
            return partial(check_node, engines=engines)
        return check_bookie
    if is_raft_store(content):
        return check_raft_store
    if identity is not None and identity.cluster == SPOOL:
        return check_spool
    if identity is not None and identity.cluster == METASTORE:
        return check_file_store
    return plain_store
