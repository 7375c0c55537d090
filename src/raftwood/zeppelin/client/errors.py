"""Errors of Zeppelin's client, and what a node's refusal means to it.

CommandRefused  a node refused the command: nothing was done, and the same would be refused again
AnswerLost      the command was done, once; a connection ended before its answer came, which the
                node does not keep
ProducerFenced  another one writes under the producer's name, with larger numbers
CheckpointGone  the node does not have the checkpoint any more: begin another one
"""

from typing import Final, TypeAlias

import msgspec

from raftwood.base.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PermissionDenied,
    RaftwoodError,
    TooLarge,
    Unauthenticated,
)
from raftwood.net.identity import split_address
from raftwood.zeppelin.resp import ErrorAnswer
from raftwood.zeppelin.slots import SLOTS


class CommandRefused(InvalidInput):
    """A node refused the command; the message has the node's words."""

    code = "kv_command_refused"


class AnswerLost(RaftwoodError):
    """The command was done: read the present value."""

    code = "kv_answer_lost"


class ProducerFenced(Conflict):
    """Nothing was written: another process has taken over the producer."""

    code = "kv_fenced"


class CheckpointGone(NotFound):
    """The checkpoint was ended, expired, or its node was restarted."""

    code = "kv_checkpoint_gone"


# What a refusal means for the caller: go to another node, try again, or give up. No I/O.

_LATER: Final = ("TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN")
_LATER_WORDS: Final = "ERR max number of clients reached"


class NotSent(ErrorAnswer):
    """The request was not sent: no node could be reached."""

    __slots__ = ()


class ConnectionEnded(ErrorAnswer):
    """The connection ended before the answer came."""

    __slots__ = ()


class Moved(msgspec.Struct, frozen=True):
    """Another node has the slot."""

    slot: int
    address: str


class RetryLater(msgspec.Struct, frozen=True):
    """The same request may succeed later."""

    reason: str
    may_be_done: bool = False
    """It may have been executed: only a named request may be sent again."""


Judgement: TypeAlias = Moved | RetryLater | RaftwoodError


def judged(answer: ErrorAnswer) -> Judgement:
    """Returns what to do about a refusal: go on, or an error to raise."""
    text = answer.text
    if isinstance(answer, ConnectionEnded):
        return RetryLater(text, may_be_done=True)
    kind = answer.kind
    if isinstance(answer, NotSent) or kind in _LATER or text == _LATER_WORDS:
        return RetryLater(text)
    match kind:
        case "MOVED":
            return _moved(text)
        case "NOREPLICAS":
            return RetryLater(text, may_be_done=True)
        case "DONE":
            return AnswerLost(
                "the command was done once, and its answer was lost with a connection: read what "
                "there is now"
            )
        case "FENCED":
            return ProducerFenced(text.removeprefix("FENCED "))
        case "WRONGPASS" | "NOAUTH":
            return Unauthenticated(f"{text}: check user and password")
        case "NOPERM":
            return PermissionDenied(f"{text}: use a user who may")
        case "NOCHECKPOINT":
            return CheckpointGone(f"checkpoint {text.removeprefix('NOCHECKPOINT ')}")
        case "TOOLARGE":
            return TooLarge(text.removeprefix("TOOLARGE "))
    return CommandRefused(text.removeprefix("ERR "))


def _moved(text: str) -> Judgement:
    words = text.split(" ")
    try:
        slot = int(words[1])
        split_address(words[2])
    except (IndexError, ValueError, InvalidInput):
        return CommandRefused(text)
    return Moved(slot, words[2]) if 0 <= slot < SLOTS else CommandRefused(text)
