"""Identifiers as types of their own, so that a shard is never passed where a term is meant."""

from typing import NewType

ClusterId = NewType("ClusterId", str)
StoreId = NewType("StoreId", int)
GroupId = NewType("GroupId", int)
"""One raft group, or any other owner of a sequence of entries in a shared log."""
ShardId = NewType("ShardId", int)
LedgerId = NewType("LedgerId", int)
Term = NewType("Term", int)
Index = NewType("Index", int)
Lsn = NewType("Lsn", int)
Epoch = NewType("Epoch", int)
