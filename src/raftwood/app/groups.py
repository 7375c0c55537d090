"""The raft groups that every cluster has, by number."""

from typing import Final

METASTORE_GROUP: Final = 1
"""The metastore; the first members of the cluster are its first replicas."""
