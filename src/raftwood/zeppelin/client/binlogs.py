"""A table's binlogs, for whoever captures its changes: see `commands/binlog` for what is asked.

A read waits for records, and what is asked behind it on the same connection waits as well: whoever
reads binlogs has a client for that alone.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, cast

import msgspec

from raftwood.base.errors import ProtocolError
from raftwood.zeppelin.client.connection import NodeConnection
from raftwood.zeppelin.client.requester import Requester
from raftwood.zeppelin.records import BinlogPosition, EpochStart, KeyWrite
from raftwood.zeppelin.resp import ErrorAnswer, request

BinlogState = Literal["records", "moved", "unknown", "purged"]
_STATES: Final = ("records", "moved", "unknown", "purged")
_NO_ANSWER: Final = "a node answered BINLOG with something else"


class PartitionSlots(msgspec.Struct, frozen=True):
    """A partition, and the slots that it has: `first` to `stop` - 1."""

    number: int
    first: int
    stop: int
    parent: int | None = None
    """Which it was split off; None: it was there from the beginning."""
    split_at: BinlogPosition = BinlogPosition()
    """The parent's last record that is its own as well."""


class TableBinlogs(msgspec.Struct, frozen=True):
    """A table as its binlogs are known by."""

    table: str
    incarnation: int
    partitions: tuple[PartitionSlots, ...]


class BinlogWant(msgspec.Struct, frozen=True):
    """What is asked of one partition."""

    partition: int
    position: BinlogPosition
    """The binlog has to contain it."""
    first: int
    """The sequence of the first record that is wanted."""


class BinlogAnswer(msgspec.Struct, frozen=True):
    """What a partition's master answered."""

    partition: int
    state: BinlogState
    """Another node is the master, the position is not in the binlog, or what follows is purged."""
    reached: int = 0
    """All records up to it are done."""
    records: tuple[bytes, ...] = ()


class BinlogAnswers(msgspec.Struct, frozen=True):
    """What one master answered."""

    partitions: int
    """So many the table has, as the master knew then."""
    answers: tuple[BinlogAnswer, ...]


class KeysNow(msgspec.Struct, frozen=True):
    """What keys have at a position."""

    position: BinlogPosition
    writes: tuple[KeyWrite, ...]
    """Of the first of the keys that were asked for."""


class Binlogs:
    """Made by `AsyncKv`."""

    def __init__(self, calls: Requester) -> None:
        self._calls = calls
        self._nodes = calls.nodes

    async def partitions(self) -> TableBinlogs:
        answer = await self._calls.read(0, request([b"BINLOG", b"PARTITIONS"]))
        try:
            name, incarnation, told = answer
            found = tuple(_slots(*each) for each in told)
            return TableBinlogs(name.decode(), incarnation, found)
        except (TypeError, ValueError, AttributeError):
            raise ProtocolError(_NO_ANSWER) from None

    def by_master(
        self, partitions: Iterable[PartitionSlots]
    ) -> dict[str | None, list[PartitionSlots]]:
        """Partitions by the address of their master, as far as is known; None: nobody is."""
        found: dict[str | None, list[PartitionSlots]] = {}
        for each in partitions:
            found.setdefault(self._nodes.map.masters[each.first], []).append(each)
        return found

    async def look(self) -> None:
        """Ask who is master of what."""
        await self._nodes.look(self._nodes.looks)

    async def read(
        self,
        address: str,
        name: str,
        wants: Sequence[BinlogWant],
        *,
        bytes_max: int = 1 << 20,
        wait_ms: int = 0,
    ) -> BinlogAnswers | ErrorAnswer:
        """Records of partitions of one master, once there are some, or after `wait_ms`; a refusal
        is answered, too: who is master is to be looked for then.
        """
        words = [b"BINLOG", b"READ", name.encode(), b"%d" % bytes_max, b"%d" % wait_ms]
        for want in wants:
            numbers = (want.partition, *_pair(want.position), want.first)
            words += [b"%d" % number for number in numbers]
        found = await self._calls.reach(address)
        answer = await found.ask(request(words)) if isinstance(found, NodeConnection) else found
        if isinstance(answer, ErrorAnswer):
            return answer
        try:
            count, told = answer
            return BinlogAnswers(count, tuple(_answer(*each) for each in told))
        except (TypeError, ValueError, AttributeError):
            raise ProtocolError(_NO_ANSWER) from None

    async def common(
        self, partition: PartitionSlots, epochs: Sequence[EpochStart], *, last: int
    ) -> int | None:
        """The last sequence that a master's binlog has in common with one that has these epochs;
        None where that is no longer known, or what follows is purged.
        """
        numbers = [partition.number, last]
        for start in epochs:
            numbers += [start.epoch, start.sequence]
        words = [b"BINLOG", b"COMMON", *(b"%d" % number for number in numbers)]
        answer = await self._calls.read(partition.first, request(words))
        return None if answer is None else int(answer)

    async def values(
        self, partition: PartitionSlots, keys: Sequence[bytes], *, common: BinlogPosition
    ) -> KeysNow | None:
        """What the first of some keys have now, at least of one; None where the master's binlog
        does not contain a position.
        """
        numbers = (partition.number, *_pair(common))
        words = [b"BINLOG", b"VALUES", *(b"%d" % number for number in numbers), *keys]
        answer = await self._calls.read(partition.first, request(words))
        if answer is None:
            return None
        try:
            epoch, sequence, told = answer
            writes = tuple(
                KeyWrite(key, None) if each is None else KeyWrite(key, *each)
                for key, each in zip(keys, told, strict=False)
            )
            return KeysNow(BinlogPosition(epoch, sequence), writes)
        except (TypeError, ValueError):
            raise ProtocolError(_NO_ANSWER) from None


def _pair(position: BinlogPosition) -> tuple[int, int]:
    return position.epoch, position.sequence


def _slots(number: int, first: int, stop: int, *parent: int) -> PartitionSlots:
    if not parent:
        return PartitionSlots(number, first, stop)
    return PartitionSlots(number, first, stop, parent[0], BinlogPosition(*parent[1:]))


def _answer(partition: int, state: bytes, *rest: Any) -> BinlogAnswer:
    name = state.decode()
    if name not in _STATES:
        raise ValueError(name)
    if name != "records":
        return BinlogAnswer(partition, cast("BinlogState", name))
    reached, records = rest
    return BinlogAnswer(partition, "records", reached, tuple(records))
