"""The log service's errors, a class for each; they travel by their codes.

RaftwoodError
├── InvalidInput
│   ├── OutOfRange
│   │   └── LsnOutOfRange        carries what can be read: first ≤ LSN < next
│   │       ├── LsnTruncated
│   │       └── LsnPastEnd
│   └── TooLarge
│       └── RecordTooLarge
├── PermissionDenied
│   └── ReadOnlyClient
├── NotFound
│   └── LogShardNotFound
└── Conflict
    ├── NotLeaseholder           names the holder
    ├── LeaseTooOld              names the holder
    └── SequenceGap              names the sequence that is due
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from raftwood.base.errors import (
    Conflict,
    NotFound,
    OutOfRange,
    PermissionDenied,
    TooLarge,
)


class LsnOutOfRange(OutOfRange):
    """An LSN that cannot be read; `first` ≤ LSN < `next` can."""

    code = "lsn_out_of_range"
    wire_fields: ClassVar[Mapping[str, type[Any]]] = {"first": int, "next": int}

    def __init__(self, message: str, first: int = 0, next: int = 0) -> None:  # noqa: A002
        super().__init__(message)
        self.first = first
        self.next = next


class LsnTruncated(LsnOutOfRange):
    """The records at this LSN were truncated."""

    code = "lsn_truncated"


class LsnPastEnd(LsnOutOfRange):
    """Nothing is written at this LSN yet."""

    code = "lsn_past_end"


class RecordTooLarge(TooLarge):
    """A record is larger than its shard allows."""

    code = "record_too_large"


class ReadOnlyClient(PermissionDenied):
    """A client made for reading only tried to change something."""

    code = "read_only_client"


class LogShardNotFound(NotFound):
    """There is no such shard."""

    code = "shard_not_found"


ShardNotFound = LogShardNotFound
"""Its name up to 0.1.0; LogHub's shards have an error of that name."""


class _NamesHolder(Conflict):
    code = "names_holder"
    wire_fields: ClassVar[Mapping[str, type[Any]]] = {"holder": int}

    def __init__(self, message: str, holder: int = 0) -> None:
        super().__init__(message)
        self.holder = holder


class NotLeaseholder(_NamesHolder):
    """Another client holds the shard's lease: nothing was written."""

    code = "not_leaseholder"


class LeaseTooOld(_NamesHolder):
    """The lease can be taken only with an id above the holder's."""

    code = "lease_too_old"


class SequenceGap(Conflict):
    """A producer's record came before the one that is due: nothing was written."""

    code = "sequence_gap"
    wire_fields: ClassVar[Mapping[str, type[Any]]] = {"due": int}

    def __init__(self, message: str, due: int = 0) -> None:
        super().__init__(message)
        self.due = due
