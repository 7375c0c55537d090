"""Zeppelin's own client: a table by its keys, with or without an event loop.

Speaks to nodes as Redis Cluster's clients do, and imports no server. Start reading at `async_kv`;
`judging` is what a refusal means, `calls` sends a request until it is answered, `batches` many at a
time, `link` is a connection; `kv` is for programs without an event loop. What is listed here is
loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftwood.zeppelin.client.async_kv import AsyncKv
    from raftwood.zeppelin.client.errors import AnswerLost, CheckpointGone, CommandRefused
    from raftwood.zeppelin.client.kv import Kv

__all__ = ["AnswerLost", "AsyncKv", "CheckpointGone", "CommandRefused", "Kv"]

_MODULES = {
    "async_kv": ("AsyncKv",),
    "errors": ("AnswerLost", "CheckpointGone", "CommandRefused"),
    "kv": ("Kv",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
