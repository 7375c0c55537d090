"""What a refusal means for whoever asked: go elsewhere, try again, or give up. No I/O."""

from typing import Final, TypeAlias

import msgspec

from raftwood.base.errors import (
    InvalidInput,
    PermissionDenied,
    RaftwoodError,
    TooLarge,
    Unauthenticated,
)
from raftwood.net.store_names import split_address
from raftwood.zeppelin.client.errors import AnswerLost, CheckpointGone, CommandRefused, Fenced
from raftwood.zeppelin.resp.arriving import ErrorAnswer
from raftwood.zeppelin.slots import SLOTS

_LATER: Final = ("TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN")
_LATER_WORDS: Final = "ERR max number of clients reached"


class NotAsked(ErrorAnswer):
    """The request was not sent: no node could be reached."""

    __slots__ = ()


class Lost(ErrorAnswer):
    """The connection ended before the answer came."""

    __slots__ = ()


class Moved(msgspec.Struct, frozen=True):
    """Another node has the slot."""

    slot: int
    address: str


class Later(msgspec.Struct, frozen=True):
    """The same request may succeed in a while."""

    reason: str
    may_be_done: bool = False
    """It may have been carried out: only one that has a name may be sent again."""


Step: TypeAlias = Moved | Later | RaftwoodError


def judged(answer: ErrorAnswer) -> Step:
    """What is to be done about a refusal; an error is to be raised."""
    text = answer.text
    if isinstance(answer, Lost):
        return Later(text, may_be_done=True)
    kind = answer.kind
    if isinstance(answer, NotAsked) or kind in _LATER or text == _LATER_WORDS:
        return Later(text)
    match kind:
        case "MOVED":
            return _moved(text)
        case "NOREPLICAS":
            return Later(text, may_be_done=True)
        case "DONE":
            return AnswerLost(
                "the command was done once, and its answer was lost with a connection: read what "
                "there is now"
            )
        case "FENCED":
            return Fenced(text.removeprefix("FENCED "))
        case "WRONGPASS" | "NOAUTH":
            return Unauthenticated(f"{text}: check user and password")
        case "NOPERM":
            return PermissionDenied(f"{text}: use a user who may")
        case "NOCHECKPOINT":
            return CheckpointGone(f"checkpoint {text.removeprefix('NOCHECKPOINT ')}")
        case "TOOLARGE":
            return TooLarge(text.removeprefix("TOOLARGE "))
    return CommandRefused(text.removeprefix("ERR "))


def _moved(text: str) -> Step:
    words = text.split(" ")
    try:
        slot = int(words[1])
        split_address(words[2])
    except (IndexError, ValueError, InvalidInput):
        return CommandRefused(text)
    return Moved(slot, words[2]) if 0 <= slot < SLOTS else CommandRefused(text)
