"""What a worker has of a shard, and how far it is with it."""

from enum import Enum, auto

import msgspec

from raftwood.loghub.consumer.leases import Save
from raftwood.loghub.consumer.rules.calls import NEVER_MS


class Stage(Enum):
    """How far a hold is."""

    WAITING = auto()
    """The lease is this worker's; another may still read the shard."""
    CONSUMING = auto()
    STOPPING = auto()
    """The consumer was told to stop, and may be inside process()."""
    HUNG = auto()
    """A call does not return: the lease is to be freed, or was; the consumer is still here."""
    STOPPED = auto()
    """The last checkpoint is to be handed over."""
    LEAVING = auto()
    """The lease is to be freed."""


class Hold(msgspec.Struct):
    """A shard that this worker leases, or read last and has not handed over yet."""

    shard: str
    stage: Stage
    deadline_ms: int
    """No work after this, by the send time of the last renewal that came through."""
    begin_ms: int
    """While waiting: whoever read the shard before must have stopped by then."""
    epoch: int = 0
    save: Save | None = None
    restart_ms: int = 0
    hung_ms: int = NEVER_MS
    """While a call of the processor is under way: it is given up on then."""
