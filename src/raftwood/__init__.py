"""Raftwood: a distributed log platform. See ARCHITECTURE.md for the packages and their order.

    cluster = raftwood.connect()
    orders = cluster.stream("shop/orders")

`connect` gives a cluster to programs without an event loop, `raftwood.aio.connect` to those with
one; `raftwood.read` gives the records of a logstore, archived or not, as a table. A name is loaded
when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from raftwood.base.lazy import lazy_exports

if TYPE_CHECKING:
    from raftwood import aio, errors
    from raftwood.base.errors import RaftwoodError
    from raftwood.clogs.client.datagram_shipper import DatagramShipper
    from raftwood.clogs.client.log_handler import ClogsHandler
    from raftwood.clogs.client.sync_shipper import Shipper
    from raftwood.cluster import Cluster, Dlog, DlogWriter, Stream, StreamConsumer, connect
    from raftwood.dlog.log.meta import LogConfig
    from raftwood.loghub.client.producer import ProducerSettings
    from raftwood.loghub.client.pulled_batches import LogRecord
    from raftwood.loghub.client.reader import ReaderSettings
    from raftwood.loghub.client.sync_client import LogHubClient, Reader
    from raftwood.loghub.client.sync_producer import LogHubHandler, Producer
    from raftwood.loghub.consumer.checkpoints import CheckpointTracker
    from raftwood.loghub.consumer.processor import Processor
    from raftwood.loghub.wire import LogstoreOptions
    from raftwood.logservice.client.sync_client import LogClient
    from raftwood.pipeline.read import read
    from raftwood.zeppelin.client.kv import Kv

__all__ = [
    "CheckpointTracker",
    "ClogsHandler",
    "Cluster",
    "DatagramShipper",
    "Dlog",
    "DlogWriter",
    "Kv",
    "LogClient",
    "LogConfig",
    "LogHubClient",
    "LogHubHandler",
    "LogRecord",
    "LogstoreOptions",
    "Processor",
    "Producer",
    "ProducerSettings",
    "RaftwoodError",
    "Reader",
    "ReaderSettings",
    "Shipper",
    "Stream",
    "StreamConsumer",
    "aio",
    "connect",
    "errors",
    "read",
]
__version__ = "0.2.0.dev0"

_MODULES = ("aio", "errors")
_load = lazy_exports(
    __name__,
    {
        "raftwood.base.errors": ("RaftwoodError",),
        "raftwood.clogs.client.datagram_shipper": ("DatagramShipper",),
        "raftwood.clogs.client.log_handler": ("ClogsHandler",),
        "raftwood.clogs.client.sync_shipper": ("Shipper",),
        "raftwood.cluster": (
            "Cluster",
            "Dlog",
            "DlogWriter",
            "Stream",
            "StreamConsumer",
            "connect",
        ),
        "raftwood.dlog.log.meta": ("LogConfig",),
        "raftwood.loghub.client.producer": ("ProducerSettings",),
        "raftwood.loghub.client.pulled_batches": ("LogRecord",),
        "raftwood.loghub.client.reader": ("ReaderSettings",),
        "raftwood.loghub.client.sync_client": ("LogHubClient", "Reader"),
        "raftwood.loghub.client.sync_producer": ("LogHubHandler", "Producer"),
        "raftwood.loghub.consumer.checkpoints": ("CheckpointTracker",),
        "raftwood.loghub.consumer.processor": ("Processor",),
        "raftwood.loghub.wire": ("LogstoreOptions",),
        "raftwood.logservice.client.sync_client": ("LogClient",),
        "raftwood.pipeline.read": ("read",),
        "raftwood.zeppelin.client.kv": ("Kv",),
    },
)


def __getattr__(name: str) -> Any:
    return import_module(f"raftwood.{name}") if name in _MODULES else _load(name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
