"""Commands on one tag that are done together, once: MULTI, the commands, a name, EXEC."""

from typing import Any

from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.zeppelin.client.calls import Calls
from raftwood.zeppelin.client.errors import CommandRefused
from raftwood.zeppelin.client.judging import judged
from raftwood.zeppelin.client.link import Link
from raftwood.zeppelin.client.words import requests
from raftwood.zeppelin.resp.arriving import ErrorAnswer
from raftwood.zeppelin.slots import slot_of


async def transact(calls: Calls, commands: list[list[bytes]]) -> list[Any]:
    """The answers of the commands; `CommandRefused` where one of them is none."""
    if not commands:
        return []
    slot = slot_of(_key(commands[0]))
    name = calls.name()
    encoded = b"".join((requests([[b"MULTI"], *commands]), name, requests([[b"EXEC"]])))
    attempts = calls.attempts()
    while True:
        seen = calls.nodes.looks
        found = await calls.reach(calls.nodes.map.masters[slot])
        answer: Any = found
        before: list[Any] = []
        if isinstance(found, Link):
            answer = await found.ask(encoded, before=len(commands) + 2, gathered=before)
        if not isinstance(answer, ErrorAnswer):
            return [_shown(each) for each in answer]
        if answer.kind == "EXECABORT":
            # Which command was refused, and why, was said when it came.
            answer = next((each for each in before if isinstance(each, ErrorAnswer)), answer)
        await attempts.after(answer, calls.nodes, seen)


def _key(words: list[bytes]) -> bytes:
    place = 2 if words and words[0].upper() == b"TAG" else 1
    if len(words) <= place:
        raise InvalidInput("each command of a transaction has a key: give it")
    return words[place]


def _shown(answer: Any) -> Any:
    if not isinstance(answer, ErrorAnswer):
        return answer
    step = judged(answer)
    return step if isinstance(step, RaftwoodError) else CommandRefused(answer.text)
