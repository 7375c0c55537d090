"""Why a record was not delivered, or why nobody can tell."""

from raftwood.base.errors import DeadlineExceeded, OutOfRange, Unavailable


class NotDelivered(Unavailable):
    """A record's time is over, and it is not stored: it may be sent again."""

    code = "not_delivered"


class DeliveryUnknown(DeadlineExceeded):
    """A record's time is over, and it may be stored, now or later: sent again, it may be twice."""

    code = "delivery_unknown"


class RecordsFreed(OutOfRange):
    """Records were freed before they were read; a reader may skip them instead."""

    code = "records_freed"
