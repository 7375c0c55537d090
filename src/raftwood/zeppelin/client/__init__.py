"""Zeppelin's own client: a table by its keys, with or without an event loop.

It uses the protocol of Redis Cluster's clients, and imports no server. Start reading at `async_kv`.
`errors` interprets refusals, `requester` sends a request until it is answered, `bulk` sends many at
a time, `connection` is one connection to a node. `kv` is for programs without an event loop. The
names listed here load at their first use.
"""

from typing import TYPE_CHECKING

from raftwood.base.lazy import lazy_exports

if TYPE_CHECKING:
    from raftwood.zeppelin.client.async_kv import AsyncKv
    from raftwood.zeppelin.client.errors import AnswerLost, CheckpointGone, CommandRefused
    from raftwood.zeppelin.client.kv import Kv

__all__ = ["AnswerLost", "AsyncKv", "CheckpointGone", "CommandRefused", "Kv"]

__getattr__ = lazy_exports(
    __name__,
    {
        "raftwood.zeppelin.client.async_kv": ("AsyncKv",),
        "raftwood.zeppelin.client.errors": (
            "AnswerLost",
            "CheckpointGone",
            "CommandRefused",
        ),
        "raftwood.zeppelin.client.kv": ("Kv",),
    },
)
