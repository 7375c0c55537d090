"""LogHub's native client: producers and readers of a logstore, with or without an event loop.

Imports what LogHub's packages share, `net` and `base`, and no server. Start reading at
`hub_client`; `producer_rules` is what a producer does, without I/O; `sync_client` is for programs
without an event loop, and `log_handler` for Python's logging. What is listed here is loaded when it
is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftwood.loghub.client.deliveries import Delivered, Delivery
    from raftwood.loghub.client.errors import DeliveryUnknown, NotDelivered, RecordsFreed
    from raftwood.loghub.client.hub_client import AsyncLogHubClient
    from raftwood.loghub.client.log_handler import LogHubHandler
    from raftwood.loghub.client.producer import AsyncProducer, ProducerSettings
    from raftwood.loghub.client.pulled_batches import LogRecord, PulledBatch
    from raftwood.loghub.client.reader import AsyncReader, ReaderSettings
    from raftwood.loghub.client.sync_client import LogHubClient
    from raftwood.loghub.client.sync_producer import Producer, ThreadDelivery
    from raftwood.loghub.client.sync_reader import Reader

__all__ = [
    "AsyncLogHubClient",
    "AsyncProducer",
    "AsyncReader",
    "Delivered",
    "Delivery",
    "DeliveryUnknown",
    "LogHubClient",
    "LogHubHandler",
    "LogRecord",
    "NotDelivered",
    "Producer",
    "ProducerSettings",
    "PulledBatch",
    "Reader",
    "ReaderSettings",
    "RecordsFreed",
    "ThreadDelivery",
]

_MODULES = {
    "deliveries": ("Delivered", "Delivery"),
    "errors": ("DeliveryUnknown", "NotDelivered", "RecordsFreed"),
    "hub_client": ("AsyncLogHubClient",),
    "log_handler": ("LogHubHandler",),
    "producer": ("AsyncProducer", "ProducerSettings"),
    "pulled_batches": ("LogRecord", "PulledBatch"),
    "reader": ("AsyncReader", "ReaderSettings"),
    "sync_client": ("LogHubClient",),
    "sync_producer": ("Producer", "ThreadDelivery"),
    "sync_reader": ("Reader",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
