"""Workers that share a logstore's shards by leases, kept in a store of the user's choice.

Users start at `worker`, or at `iterating` for `async for`; `processor` is what they write. Readers
start at `leases`, the model; `rules` decides, without I/O; `lease_store` is the seam to what keeps
the rows, and `stores` has what stands behind it; `source` is the seam to what is consumed, and
`sources` has LogHub and Kafka. What is listed here is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftwood.loghub.consumer.errors import LeaseLost, NameTaken
    from raftwood.loghub.consumer.iterating import Consumer
    from raftwood.loghub.consumer.lease_store import LeaseStore
    from raftwood.loghub.consumer.leases import LeaseTimes, signature
    from raftwood.loghub.consumer.processor import AsyncProcessor, Processor, ProcessorFactory
    from raftwood.loghub.consumer.source import ShardBatch, ShardSource
    from raftwood.loghub.consumer.sources.kafka import KafkaSource
    from raftwood.loghub.consumer.sources.loghub import LogHubSource
    from raftwood.loghub.consumer.stores.memory import MemoryLeaseStore
    from raftwood.loghub.consumer.stores.meta import MetaLeaseStore
    from raftwood.loghub.consumer.stores.sql import SqlLeaseStore
    from raftwood.loghub.consumer.trackers import AsyncCheckpointTracker, CheckpointTracker
    from raftwood.loghub.consumer.worker import Worker, WorkerConfig

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

_MODULES = {
    "errors": ("LeaseLost", "NameTaken"),
    "iterating": ("Consumer",),
    "lease_store": ("LeaseStore",),
    "leases": ("LeaseTimes", "signature"),
    "processor": ("AsyncProcessor", "Processor", "ProcessorFactory"),
    "source": ("ShardBatch", "ShardSource"),
    "sources.kafka": ("KafkaSource",),
    "sources.loghub": ("LogHubSource",),
    "stores.memory": ("MemoryLeaseStore",),
    "stores.meta": ("MetaLeaseStore",),
    "stores.sql": ("SqlLeaseStore",),
    "trackers": ("AsyncCheckpointTracker", "CheckpointTracker"),
    "worker": ("Worker", "WorkerConfig"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
