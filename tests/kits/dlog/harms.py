"""What can go wrong with ledgers and logs, by name: a planted bug is caught by what it breaks."""

from enum import StrEnum


class Harm(StrEnum):
    """A promise that was broken, or a rule that all promises rest on."""

    # Of ledgers.
    ACKS_OUT_OF_ORDER = "an entry is acked before the one in front of it"
    ACKED_BEHIND_THE_END = "an ack for something behind the end that others gave the ledger"
    CLOSED_BEFORE_ACKED = "a ledger is closed in front of entries that were acked"
    CLOSED_BEFORE_SEEN = "a ledger is closed in front of entries that were read"
    CLOSED_OTHERWISE = "a ledger that is closed is changed"
    UNFENCED_ACK = "entries can be acked that no fenced bookie has"
    WRONG_LENGTH = "a ledger is closed with a length that is not its own"
    TOO_FEW_COPIES = "an entry is not where its segment says, as often as its ack promised"
    ACKED_AND_UNSEEN = "a reader that asked after an ack did not see the entry"
    READ_UNWRITTEN = "a reader was given what nobody appended"
    NOT_REPAIRED = "a bookie cannot be repaired though the others are there"
    NOT_RECOVERED = "a ledger cannot be recovered though all bookies are there"

    # Of logs.
    LOST = "a message that was acked is gone"
    MOVED = "where a message was acked stands something else"
    ACKED_OFF_THE_LIST = "a message was acked in a ledger that the log does not have"
    TWO_WRITERS = "a message was acked in front of what had been acked before it was sent"
    TWICE = "a producer's message stands twice, or was acked at two places"
    HOLE = "a message is lost, and a later one of its writer stored"
    OUT_OF_ORDER = "messages are not in the order in which they were sent"
    SEEN_AND_GONE = "a message was read, and is not in the log"
    UNREADABLE = "the log cannot be read to its end"
    UNWRITABLE = "nobody can write the log any more"
    OPEN_LEDGERS = "a ledger is open that is not among the last two"
    UNKNOWN_PRODUCERS = "a writer begins that does not know what producers have written"
    LISTED_AND_DELETED = "a ledger of the list was deleted"
    WRONG_RECORD = "the record says of a ledger what is not so"
    LEDGERS_LEFT = "there are ledgers that no list has"
