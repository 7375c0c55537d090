"""What concerns all keys of a table: going through them, counting and deleting them.

Each master is asked for its own. A slot that changed hands meanwhile is asked for again, so that
keys which are there all the time are told at least once.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from raftwood.base.errors import ProtocolError, Unavailable
from raftwood.zeppelin.client.calls import Calls
from raftwood.zeppelin.client.link import Link
from raftwood.zeppelin.client.words import request
from raftwood.zeppelin.resp.arriving import ErrorAnswer
from raftwood.zeppelin.slots import slot_of

ROUNDS_MAX: Final = 100
"""So often nodes may change hands during one call."""


class Whole:
    """Commands to all masters."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._nodes = calls.nodes

    async def pages(self, match: bytes | None, count: int) -> AsyncIterator[list[bytes]]:
        """Keys, some at a time; one that is written meanwhile may be told twice, or not at all."""
        options = [b"COUNT", b"%d" % count]
        if match is not None:
            options += [b"MATCH", match]
        waiting = dict.fromkeys(range(len(self._nodes.map.masters)))
        """Slots that nobody has told all of yet."""
        for _ in range(ROUNDS_MAX):
            masters = self._nodes.map.masters
            address = masters[next(iter(waiting))]
            mine = dict.fromkeys(slot for slot in waiting if masters[slot] == address)
            cursor, is_known = b"0", True
            while is_known:
                answer = await self._ask(address, next(iter(mine)), [b"SCAN", cursor, *options])
                if isinstance(answer, ErrorAnswer):
                    is_known = False  # it is another node by now, or has forgotten where it was
                    continue
                cursor, keys = _page(answer)
                found = [key for key in keys if slot_of(key) in mine]
                if found:
                    yield found
                if cursor == b"0":
                    break
            await self._look()
            if is_known:
                now = self._nodes.map.masters
                for slot in mine:
                    if now[slot] == address:
                        del waiting[slot]
            if not waiting:
                return
        raise Unavailable("nodes change hands all the time: go through the keys again later")

    async def flush(self) -> None:
        """Delete everything, once: what is written behind it stays, however often it is sent."""
        named = self._calls.name() + request([b"FLUSHDB"])
        await self._all(named, before=1)

    async def fence(self, producer: bytes, number: int | None = None) -> int:
        """The largest number of a producer in any partition, -1 where there is none; with a number,
        all of them take none below it from now on.
        """
        words = [b"FENCE", producer, *([] if number is None else [b"%d" % number])]
        answers = await self._all(request(words))
        return max(answers) if number is None else number

    async def clear(self, producer: bytes, number: int, slots: range) -> int:
        """Delete all keys of partitions that are within the slots; how many others are not."""
        words = [b"BULK", b"CLEAR", producer, b"%d" % number]
        words += [b"%d" % slots[0], b"%d" % slots[-1]]
        return sum(await self._all(request(words)))

    async def count(self) -> int:
        return sum(await self._all(request([b"DBSIZE"])))

    async def _all(self, encoded: bytes, *, before: int = 0) -> list[Any]:
        """The answers of all masters, who are the same before and behind it."""
        attempts = self._calls.attempts()
        while True:
            nodes = self._nodes
            seen, masters = nodes.looks, list(nodes.map.masters)
            answers: list[Any] = []
            if None in masters:
                answers.append(ErrorAnswer("CLUSTERDOWN nobody has some slots"))
            asked = []
            for address in nodes.map.distinct_masters:
                found = await self._calls.reach(address)
                if isinstance(found, Link):
                    asked.append(found.ask(encoded, before=before))
                else:
                    answers.append(found)
            answers += [await each for each in asked]
            refusal = next((each for each in answers if isinstance(each, ErrorAnswer)), None)
            if refusal is not None:
                await attempts.after(refusal, nodes, seen, is_of_many=True)
                continue
            await self._look()
            if nodes.map.masters == masters:
                return answers

    async def _ask(self, address: str | None, slot: int, words: list[bytes]) -> Any:
        """One node's answer; a refusal once it was seen to, so that others may be asked."""
        attempts = self._calls.attempts()
        encoded = request(words)
        while True:
            seen = self._nodes.looks
            found: Any = await self._calls.reach(address)
            answer = await found.ask(encoded) if isinstance(found, Link) else found
            if not isinstance(answer, ErrorAnswer):
                return answer
            if answer.text.startswith("ERR invalid cursor"):
                return answer
            await attempts.after(answer, self._nodes, seen, is_of_many=True)
            if self._nodes.map.masters[slot] != address:
                return answer

    async def _look(self) -> None:
        with suppress(Unavailable):
            await self._nodes.look(self._nodes.looks)


def _page(answer: Any) -> tuple[bytes, list[bytes]]:
    try:
        cursor, keys = answer
    except (TypeError, ValueError):
        raise ProtocolError("a node answered SCAN with something else") from None
    return cursor, keys
