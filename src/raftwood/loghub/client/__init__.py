"""LogHub's native client: producers and readers of a logstore, with or without an event loop.

Imports what LogHub's packages share, `delivery`, `net`, `disk.loop_thread` and `base`, and no
server. Start reading at `hub_client`; `producer_rules` is what a producer does, without I/O;
`sync_client` and `sync_producer` are for programs without an event loop. What is listed here is
loaded when it is first used.
"""

from typing import TYPE_CHECKING

from raftwood.base.lazy import lazy_exports

if TYPE_CHECKING:
    from raftwood.delivery.deliveries import Delivery
    from raftwood.loghub.client.hub_client import AsyncLogHubClient
    from raftwood.loghub.client.producer import AsyncProducer, Delivered, ProducerSettings
    from raftwood.loghub.client.pulled_batches import LogRecord, PulledBatch
    from raftwood.loghub.client.reader import AsyncReader, ReaderSettings
    from raftwood.loghub.client.sync_client import LogHubClient, Reader
    from raftwood.loghub.client.sync_producer import LogHubHandler, Producer, ThreadDelivery
    from raftwood.loghub.errors import DeliveryUnknown, NotDelivered, RecordsFreed

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

__getattr__ = lazy_exports(
    __name__,
    {
        "raftwood.delivery.deliveries": ("Delivery",),
        "raftwood.loghub.client.hub_client": ("AsyncLogHubClient",),
        "raftwood.loghub.client.producer": (
            "AsyncProducer",
            "Delivered",
            "ProducerSettings",
        ),
        "raftwood.loghub.client.pulled_batches": (
            "LogRecord",
            "PulledBatch",
        ),
        "raftwood.loghub.client.reader": (
            "AsyncReader",
            "ReaderSettings",
        ),
        "raftwood.loghub.client.sync_client": (
            "LogHubClient",
            "Reader",
        ),
        "raftwood.loghub.client.sync_producer": (
            "LogHubHandler",
            "Producer",
            "ThreadDelivery",
        ),
        "raftwood.loghub.errors": (
            "DeliveryUnknown",
            "NotDelivered",
            "RecordsFreed",
        ),
    },
)
