"""The shipping client: takes lines by file name, and has them stored.

Start reading at `shipping_rules`, `shipper` and `backlog`; `sync_shipper` is for programs without
an event loop, and `log_handler` for Python's logging. Imports no receiver. What is listed here is
loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftwood.clogs.client.counters import Counters, ServerCounters
    from raftwood.clogs.client.datagram_shipper import DatagramShipper
    from raftwood.clogs.client.deliveries import Delivery
    from raftwood.clogs.client.log_handler import ClogsHandler
    from raftwood.clogs.client.opening import open_shipper
    from raftwood.clogs.client.settings import (
        ClogsClientSettings,
        Compression,
        SpoolMode,
        WhenFull,
        client_settings,
    )
    from raftwood.clogs.client.shipper import AsyncShipper
    from raftwood.clogs.client.status import ServerStatus, ShipperStatus
    from raftwood.clogs.client.sync_shipper import Shipper
    from raftwood.clogs.errors import LinesDropped
    from raftwood.clogs.masking import MaskRule

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

_MODULES = {
    "raftwood.clogs.client.counters": ("Counters", "ServerCounters"),
    "raftwood.clogs.client.datagram_shipper": ("DatagramShipper",),
    "raftwood.clogs.client.deliveries": ("Delivery",),
    "raftwood.clogs.client.log_handler": ("ClogsHandler",),
    "raftwood.clogs.client.opening": ("open_shipper",),
    "raftwood.clogs.client.settings": (
        "ClogsClientSettings",
        "Compression",
        "SpoolMode",
        "WhenFull",
        "client_settings",
    ),
    "raftwood.clogs.client.shipper": ("AsyncShipper",),
    "raftwood.clogs.client.status": ("ServerStatus", "ShipperStatus"),
    "raftwood.clogs.client.sync_shipper": ("Shipper",),
    "raftwood.clogs.errors": ("LinesDropped",),
    "raftwood.clogs.masking": ("MaskRule",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
