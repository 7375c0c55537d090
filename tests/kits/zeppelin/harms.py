"""What replication must never do, by name, so that a planted bug is caught by what it breaks."""

from enum import StrEnum


class Harm(StrEnum):
    """What was broken."""

    LOST = "a write that was called done is lost"
    UNDONE = "a read told what was undone"
    NOT_LINEARIZABLE = "reads and writes of a key are in no order"
    GHOST = "a replica has keys that its binlog does not lead to"
    DIFFERENT_RECORDS = "two records have the same epoch and sequence"
    TWO_MASTERS = "a node calls writes done that is not master any more"
    TWICE = "a request was applied twice"
    STALLED = "replicas do not become equal"
    FORGOTTEN = "a migration was ordered that is neither done nor cancelled, nor under way"
    FROZEN = "writes wait for longer than a hand-over may take"
    REFUSED = "a client gave up what it was to try again"
