"""The shipping client: accepts lines by file name, and gets them stored.

Start reading at `shipping_rules`, `shipper` and `backlog`; `sync_shipper` is for programs without
an event loop, and `log_handler` for Python's logging. Imports no receiver. The names below are
loaded when they are first used.
"""

from typing import TYPE_CHECKING

from raftwood.base.lazy import lazy_exports

if TYPE_CHECKING:
    from raftwood.clogs.client.datagram_shipper import DatagramShipper
    from raftwood.clogs.client.log_handler import ClogsHandler
    from raftwood.clogs.client.settings import (
        ClogsClientSettings,
        Compression,
        SpoolMode,
        WhenFull,
        client_settings,
    )
    from raftwood.clogs.client.shipper import AsyncShipper, open_shipper
    from raftwood.clogs.client.status import Counters, ServerCounters, ServerStatus, ShipperStatus
    from raftwood.clogs.client.sync_shipper import Shipper
    from raftwood.clogs.errors import LinesDropped
    from raftwood.clogs.masking import MaskRule
    from raftwood.delivery.deliveries import Delivery

__all__ = [
    "AsyncShipper",
    "ClogsClientSettings",
    "ClogsHandler",
    "Compression",
    "Counters",
    "DatagramShipper",
    "Delivery",
    "LinesDropped",
    "MaskRule",
    "ServerCounters",
    "ServerStatus",
    "Shipper",
    "ShipperStatus",
    "SpoolMode",
    "WhenFull",
    "client_settings",
    "open_shipper",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "raftwood.clogs.client.datagram_shipper": ("DatagramShipper",),
        "raftwood.clogs.client.log_handler": ("ClogsHandler",),
        "raftwood.clogs.client.settings": (
            "ClogsClientSettings",
            "Compression",
            "SpoolMode",
            "WhenFull",
            "client_settings",
        ),
        "raftwood.clogs.client.shipper": (
            "AsyncShipper",
            "open_shipper",
        ),
        "raftwood.clogs.client.status": (
            "Counters",
            "ServerCounters",
            "ServerStatus",
            "ShipperStatus",
        ),
        "raftwood.clogs.client.sync_shipper": ("Shipper",),
        "raftwood.clogs.errors": ("LinesDropped",),
        "raftwood.clogs.masking": ("MaskRule",),
        "raftwood.delivery.deliveries": ("Delivery",),
    },
)
