"""LogHub's errors: those of gateways, of its client and of consumer workers.

They travel between native clients and gateways by their codes, to SLS clients by SLS's codes:

RaftwoodError
├── InvalidInput
│   ├── InvalidParameter       ParameterInvalid
│   ├── InvalidCursor          InvalidCursor
│   └── TooLarge
│       └── BatchTooLarge      PostBodyTooLarge
├── Unauthenticated
│   └── SignatureMismatch      SignatureNotMatch
├── NotFound
│   ├── ProjectNotFound        ProjectNotExist
│   ├── LogstoreNotFound       LogStoreNotExist
│   ├── ShardNotFound          ShardNotExist
│   └── ConsumerGroupNotFound  ConsumerGroupNotExist
├── AlreadyExists
│   ├── ProjectExists          ProjectAlreadyExist
│   ├── LogstoreExists         LogStoreAlreadyExist
│   └── ConsumerGroupExists    ConsumerGroupAlreadyExist
├── Conflict
│   ├── ShardReadonly          the shard was split or merged: nothing was put
│   ├── ConsumerMismatch       ConsumerNotMatch
│   ├── LeaseLost              of a worker: the shard is another worker's
│   └── NameTaken              of a worker: another process runs under its name
├── OutOfRange
│   └── RecordsFreed           of a reader: records were freed before they were read
├── DeadlineExceeded
│   └── DeliveryUnknown        of a producer: the record may be stored
└── Unavailable
    ├── QuotaExceeded          WriteQuotaExceed
    └── NotDelivered           of a producer: the record is not stored
"""

from typing import ClassVar, Final

from raftwood.base.errors import (
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    LogSealed,
    NotFound,
    OutOfRange,
    TooLarge,
    Unauthenticated,
    Unavailable,
)


class SlsError:
    """A mixin that holds the error's name in the SLS API."""

    sls_code: ClassVar[str]


class InvalidParameter(SlsError, InvalidInput):
    """A parameter is missing or invalid."""

    code = "invalid_parameter"
    sls_code = "ParameterInvalid"


class InvalidCursor(SlsError, InvalidInput):
    """The cursor does not belong to this shard."""

    code = "invalid_cursor"
    sls_code = "InvalidCursor"


class BatchTooLarge(SlsError, TooLarge):
    """A batch is above the size limit, or its head says so."""

    code = "batch_too_large"
    sls_code = "PostBodyTooLarge"


class SignatureMismatch(SlsError, Unauthenticated):
    """The signature does not match the key."""

    code = "signature_mismatch"
    sls_code = "SignatureNotMatch"


class ProjectNotFound(SlsError, NotFound):
    """There is no such project, or the key has no right there."""

    code = "project_not_found"
    sls_code = "ProjectNotExist"


class LogstoreNotFound(SlsError, NotFound):
    """There is no such logstore in the project."""

    code = "logstore_not_found"
    sls_code = "LogStoreNotExist"


class ShardNotFound(SlsError, NotFound):
    """There is no such shard in the logstore."""

    code = "stream_shard_not_found"
    sls_code = "ShardNotExist"


class ConsumerGroupNotFound(SlsError, NotFound):
    """There is no such consumer group in the logstore."""

    code = "consumer_group_not_found"
    sls_code = "ConsumerGroupNotExist"


class ProjectExists(SlsError, AlreadyExists):
    """The project is there already."""

    code = "project_exists"
    sls_code = "ProjectAlreadyExist"


class LogstoreExists(SlsError, AlreadyExists):
    """The logstore is there already."""

    code = "logstore_exists"
    sls_code = "LogStoreAlreadyExist"


class ConsumerGroupExists(SlsError, AlreadyExists):
    """The consumer group is there already."""

    code = "consumer_group_exists"
    sls_code = "ConsumerGroupAlreadyExist"


class ShardReadonly(SlsError, Conflict):
    """The shard was split or merged, and the batch is not stored: ask for the shards again, and put
    it where its key belongs now.
    """

    code = "shard_readonly"
    sls_code = "ShardReadonly"


SHARD_ENDED: Final = (ShardReadonly, LogSealed, ShardNotFound)
"""The shard takes no more records: send them to the shard that took over its range."""


class ConsumerMismatch(SlsError, Conflict):
    """The shard does not belong to this consumer any more."""

    code = "consumer_mismatch"
    sls_code = "ConsumerNotMatch"


class QuotaExceeded(SlsError, Unavailable):
    """The write quota is exceeded: slow down."""

    code = "quota_exceeded"
    http_status = 403
    sls_code = "WriteQuotaExceed"


class NotDelivered(Unavailable):
    """A record's time is over and it is not stored; it may be sent again."""

    code = "not_delivered"


class DeliveryUnknown(DeadlineExceeded):
    """A record's time is over; it may be stored, now or later, and twice if it is sent again."""

    code = "delivery_unknown"


class RecordsFreed(OutOfRange):
    """Records were freed before they were read; a reader may skip them instead."""

    code = "records_freed"


class LeaseLost(Conflict):
    """Another worker has the shard; it processes again what this worker had not saved."""

    code = "lease_lost"


class NameTaken(Conflict):
    """Another process runs under this worker's name."""

    code = "worker_name_taken"
