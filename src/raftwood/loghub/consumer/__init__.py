"""Workers that share a logstore's shards by leases, kept in a store of the user's choice.

Imports `loghub.client`, what LogHub's packages share, and `base`. Users start at `worker`, or at
`iterator` for `async for`, and write a `processor`. Readers of the code start at `leases`, the
model and the seam to the stores of rows. `lease_agent` and `lease_plan` decide, without I/O. Stores
are `memory_store`, `meta_store` and `sql_store`. `source` is the seam to what workers consume;
`loghub_source` and `kafka_source` implement it. What is listed here is loaded when it is first
used.
"""

from typing import TYPE_CHECKING

from raftwood.base.lazy import lazy_exports

if TYPE_CHECKING:
    from raftwood.loghub.consumer.checkpoints import AsyncCheckpointTracker, CheckpointTracker
    from raftwood.loghub.consumer.iterator import Consumer
    from raftwood.loghub.consumer.kafka_source import KafkaSource
    from raftwood.loghub.consumer.leases import LeaseStore, LeaseTimes, signature
    from raftwood.loghub.consumer.loghub_source import LogHubSource
    from raftwood.loghub.consumer.memory_store import MemoryLeaseStore
    from raftwood.loghub.consumer.meta_store import MetaLeaseStore
    from raftwood.loghub.consumer.processor import AsyncProcessor, Processor, ProcessorFactory
    from raftwood.loghub.consumer.source import ShardBatch, ShardSource
    from raftwood.loghub.consumer.sql_store import SqlLeaseStore
    from raftwood.loghub.consumer.worker import Worker, WorkerConfig
    from raftwood.loghub.errors import LeaseLost, NameTaken

__all__ = [
    "AsyncCheckpointTracker",
    "AsyncProcessor",
    "CheckpointTracker",
    "Consumer",
    "KafkaSource",
    "LeaseLost",
    "LeaseStore",
    "LeaseTimes",
    "LogHubSource",
    "MemoryLeaseStore",
    "MetaLeaseStore",
    "NameTaken",
    "Processor",
    "ProcessorFactory",
    "ShardBatch",
    "ShardSource",
    "SqlLeaseStore",
    "Worker",
    "WorkerConfig",
    "signature",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "raftwood.loghub.consumer.checkpoints": (
            "AsyncCheckpointTracker",
            "CheckpointTracker",
        ),
        "raftwood.loghub.consumer.iterator": ("Consumer",),
        "raftwood.loghub.consumer.kafka_source": ("KafkaSource",),
        "raftwood.loghub.consumer.leases": (
            "LeaseStore",
            "LeaseTimes",
            "signature",
        ),
        "raftwood.loghub.consumer.loghub_source": ("LogHubSource",),
        "raftwood.loghub.consumer.memory_store": ("MemoryLeaseStore",),
        "raftwood.loghub.consumer.meta_store": ("MetaLeaseStore",),
        "raftwood.loghub.consumer.processor": (
            "AsyncProcessor",
            "Processor",
            "ProcessorFactory",
        ),
        "raftwood.loghub.consumer.source": (
            "ShardBatch",
            "ShardSource",
        ),
        "raftwood.loghub.consumer.sql_store": ("SqlLeaseStore",),
        "raftwood.loghub.consumer.worker": (
            "Worker",
            "WorkerConfig",
        ),
        "raftwood.loghub.errors": (
            "LeaseLost",
            "NameTaken",
        ),
    },
)
