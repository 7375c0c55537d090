"""The log service's client: append, read, truncate and tail a shard, wherever its leader is.

Imports `wire`, the structs that it carries, `net` and `base`, and no server. Start reading at
`log_client`; `shard_log` is the same as the `Log` seam, and `shard_logs` is all shards as `Logs`;
`sync_client` is for programs without an event loop, `keeper_client` talks to HAKeeper and
`service_agent` keeps in touch with it. What is listed here is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftwood.base.errors import SequenceForgotten
    from raftwood.logservice.client.keeper_client import KeeperClient
    from raftwood.logservice.client.log_client import AsyncLogClient, LogClientConfig
    from raftwood.logservice.client.service_agent import ServiceAgent
    from raftwood.logservice.client.shard_log import ShardLog
    from raftwood.logservice.client.shard_logs import ShardLogs
    from raftwood.logservice.client.sync_client import LogClient
    from raftwood.logservice.errors import (
        LeaseTooOld,
        LsnOutOfRange,
        LsnPastEnd,
        LsnTruncated,
        NotLeaseholder,
        ReadOnlyClient,
        RecordTooLarge,
        SequenceGap,
        ShardNotFound,
    )
    from raftwood.logservice.records import Record

__all__ = [
    "AsyncLogClient",
    "KeeperClient",
    "LeaseTooOld",
    "LogClient",
    "LogClientConfig",
    "LsnOutOfRange",
    "LsnPastEnd",
    "LsnTruncated",
    "NotLeaseholder",
    "ReadOnlyClient",
    "Record",
    "RecordTooLarge",
    "SequenceForgotten",
    "SequenceGap",
    "ServiceAgent",
    "ShardLog",
    "ShardLogs",
    "ShardNotFound",
]

_PLACES = {
    "AsyncLogClient": "raftwood.logservice.client.log_client",
    "KeeperClient": "raftwood.logservice.client.keeper_client",
    "LogClient": "raftwood.logservice.client.sync_client",
    "LogClientConfig": "raftwood.logservice.client.log_client",
    "Record": "raftwood.logservice.records",
    "SequenceForgotten": "raftwood.base.errors",
    "ServiceAgent": "raftwood.logservice.client.service_agent",
    "ShardLog": "raftwood.logservice.client.shard_log",
    "ShardLogs": "raftwood.logservice.client.shard_logs",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES.get(name, "raftwood.logservice.errors")), name)
