"""The raft groups that every cluster has, by number."""

from typing import Final

from raftwood.logservice.hakeeper.reports import GUESTS_FIRST

METASTORE_GROUP: Final = 1
"""The metastore of `raftwood serve`; the first members of the cluster are its first replicas."""
METASTORE_SHARD: Final = GUESTS_FIRST
"""The metastore of a log service; HAKeeper places it."""
ZEPPELIN_SHARD: Final = GUESTS_FIRST + 1
"""The meta server of Zeppelin; HAKeeper places it."""
