"""Raftwood: a distributed log platform. See ARCHITECTURE.md for the packages and their order.

`raftwood.read` gives the records of a logstore, archived or not, as a table.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raftwood.pipeline.read import read

__all__ = ["read"]
__version__ = "0.2.0.dev0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        from raftwood.pipeline.read import read  # noqa: PLC0415 (needs an extra)

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
