"""All errors that cross a package or a wire, as one tree.

RaftwoodError
├── InvalidInput              the caller must change the request
│   ├── InvalidName
│   ├── InvalidConfiguration
│   ├── TooLarge
│   └── OutOfRange            outside what is stored; names the stored range
├── Unauthenticated
│   └── OtherServer           another server than the expected one listens there
├── PermissionDenied
├── NotFound
├── AlreadyExists
├── Conflict                  a compare-and-set lost
│   ├── LogSealed             the log takes no more: nothing was stored
│   └── SequenceForgotten     too old to know whether it was stored
├── SessionExpired            a client's session ended; unanswered commands may have been done
├── Unavailable               nothing was done; try again
│   ├── Overloaded
│   ├── DiskFull
│   ├── ConnectionLost        the outcome may be unknown
│   ├── NotLeader             another node leads; names it
│   └── ShuttingDown
├── DeadlineExceeded          the outcome is unknown
├── Cancelled
├── StoreError                the data folder cannot be used as it is
│   ├── StoreLocked
│   ├── StoreDamaged
│   └── UnsupportedVersion
├── ProtocolError             a peer broke the wire format
└── InternalError
    └── InvariantViolated     our own bug; never continue after it

A message names the thing and the remedy. `code` is stable on the wire: a class may be renamed, its
code may not.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

_CLASSES: Final[dict[str, type["RaftwoodError"]]] = {}
"""Classes by code; the tree grows as packages are imported."""


class RaftwoodError(Exception):
    """The root; raised only through its subclasses."""

    code: ClassVar[str] = "error"
    retriable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500
    wire_fields: ClassVar[Mapping[str, type[Any]]] = {}
    """Attributes that travel with the message: small, and keywords of the class with a default."""

    def __init_subclass__(cls) -> None:
        if "code" in vars(cls):  # A class without its own code travels as its parent.
            _CLASSES[cls.code] = cls

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else self.code


_CLASSES[RaftwoodError.code] = RaftwoodError


class InvalidInput(RaftwoodError):
    """The request cannot succeed unless the caller changes it."""

    code = "invalid_input"
    http_status = 400


class InvalidName(InvalidInput):
    """A name breaks the rule in `base.names`."""

    code = "invalid_name"


class InvalidConfiguration(InvalidInput):
    """A setting is unknown, of the wrong type or out of its range."""

    code = "invalid_configuration"


class TooLarge(InvalidInput):
    """A record, frame or request is above its limit."""

    code = "too_large"
    http_status = 413


class OutOfRange(InvalidInput):
    """The requested place lies outside what is stored."""

    code = "out_of_range"
    http_status = 416


class Unauthenticated(RaftwoodError):
    """The peer did not prove its identity."""

    code = "unauthenticated"
    http_status = 401


class OtherServer(Unauthenticated):
    """Another server than the expected one listens at the address."""

    code = "other_server"


class PermissionDenied(RaftwoodError):
    """The peer is known and may not do this."""

    code = "permission_denied"
    http_status = 403


class NotFound(RaftwoodError):
    """The named thing does not exist."""

    code = "not_found"
    http_status = 404


class AlreadyExists(RaftwoodError):
    """The named thing exists already."""

    code = "already_exists"
    http_status = 409


class Conflict(RaftwoodError):
    """Another writer changed it first: read again, then decide."""

    code = "conflict"
    http_status = 409


class LogSealed(Conflict):
    """The log has ended, and the append was not stored."""

    code = "log_sealed"


class SequenceForgotten(Conflict):
    """The sequence is so old that the log no longer knows whether and where it was stored."""

    code = "sequence_forgotten"


class SessionExpired(RaftwoodError):
    """The client's session has ended: unanswered commands may or may not have been done."""

    code = "session_expired"
    http_status = 410


class Unavailable(RaftwoodError):
    """The request was not carried out; the same request may succeed later."""

    code = "unavailable"
    retriable = True
    http_status = 503


class Overloaded(Unavailable):
    """A bound on queue, memory or connections was reached."""

    code = "overloaded"
    http_status = 429


class DiskFull(Unavailable):
    """There is no room for more data; the server resumes by itself when there is."""

    code = "disk_full"
    http_status = 507


class ConnectionLost(Unavailable):
    """The connection ended; a request under way may or may not have been carried out."""

    code = "connection_lost"


class NotLeader(Unavailable):
    """Only a group's leader can do this; `leader` is its id, or 0 if none is known."""

    code = "not_leader"
    wire_fields: ClassVar[Mapping[str, type[Any]]] = {"leader": int}

    def __init__(self, message: str, leader: int = 0) -> None:
        super().__init__(message)
        self.leader = leader


class ShuttingDown(Unavailable):
    """The server drains and takes no new work; another server may."""

    code = "shutting_down"


class DeadlineExceeded(RaftwoodError):
    """Time ran out; the request may or may not have been carried out."""

    code = "deadline_exceeded"
    retriable = True
    http_status = 504


class Cancelled(RaftwoodError):
    """The caller gave the request up; it may or may not have been carried out."""

    code = "cancelled"
    http_status = 499


class StoreError(RaftwoodError):
    """A data folder cannot be used as it is."""

    code = "store_error"


class StoreLocked(StoreError):
    """Another process uses the data folder."""

    code = "store_locked"


class StoreDamaged(StoreError):
    """Synced data does not match its checksum, or a part of it is missing."""

    code = "store_damaged"


class UnsupportedVersion(StoreError):
    """Written by a newer version than this one."""

    code = "unsupported_version"


class ProtocolError(RaftwoodError):
    """A peer sent what the wire format does not allow; the connection is closed."""

    code = "protocol_error"
    http_status = 400


class InternalError(RaftwoodError):
    """Something failed on the server that the caller cannot repair."""

    code = "internal_error"


class InvariantViolated(InternalError):
    """The program is in a state that its rules exclude: a bug."""

    code = "invariant_violated"


def error_class(*codes: str) -> type[RaftwoodError]:
    """Returns the class for the first known code from the wire; InternalError if none is known."""
    return next((_CLASSES[code] for code in codes if code in _CLASSES), InternalError)
