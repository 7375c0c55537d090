"""The log service's client: append, read, truncate and tail a shard, wherever its leader is.

Imports `wire`, the structs that it carries, `net` and `base`, and no server. Start reading at
`log_client`, then `append_pipeline` and `shard_link`. `shard_logs` has a shard as the `Log` seam,
and all shards as `Logs`; `sync_client` is for programs without an event loop; `keeper_client`
talks to HAKeeper, for operators and for services that keep in touch with it; `backup` writes a
shard to a folder and back. What is listed here is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from raftwood.base.lazy import lazy_exports

if TYPE_CHECKING:
    from raftwood.base.errors import SequenceForgotten
    from raftwood.logservice.client.keeper_client import KeeperClient, ServiceAgent
    from raftwood.logservice.client.log_client import AsyncLogClient, LogClientConfig
    from raftwood.logservice.client.shard_logs import ShardLog, ShardLogs
    from raftwood.logservice.client.sync_client import LogClient
    from raftwood.logservice.errors import (
        LeaseTooOld,
        LogShardNotFound,
        LsnOutOfRange,
        LsnPastEnd,
        LsnTruncated,
        NotLeaseholder,
        ReadOnlyClient,
        RecordTooLarge,
        SequenceGap,
    )
    from raftwood.logservice.records import Record

__all__ = [
    "AsyncLogClient",
    "KeeperClient",
    "LeaseTooOld",
    "LogClient",
    "LogClientConfig",
    "LogShardNotFound",
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
]

__getattr__ = lazy_exports(
    __name__,
    {
        "raftwood.base.errors": ("SequenceForgotten",),
        "raftwood.logservice.client.keeper_client": (
            "KeeperClient",
            "ServiceAgent",
        ),
        "raftwood.logservice.client.log_client": (
            "AsyncLogClient",
            "LogClientConfig",
        ),
        "raftwood.logservice.client.shard_logs": (
            "ShardLog",
            "ShardLogs",
        ),
        "raftwood.logservice.client.sync_client": ("LogClient",),
        "raftwood.logservice.errors": (
            "LeaseTooOld",
            "LogShardNotFound",
            "LsnOutOfRange",
            "LsnPastEnd",
            "LsnTruncated",
            "NotLeaseholder",
            "ReadOnlyClient",
            "RecordTooLarge",
            "SequenceGap",
            "ShardNotFound",
        ),
        "raftwood.logservice.records": ("Record",),
    },
)
