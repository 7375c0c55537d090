"""A table's binlogs, for the capture of its changes: `commands/binlog` describes the requests.

A read waits for records, and so do requests behind it on the same connection: a reader of binlogs
needs a client of its own.
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
    """A partition, and its slots: `first` to `stop` - 1."""

    number: int
    first: int
    stop: int
    parent: int | None = None
    """The partition that it was split off; None: it is an original one."""
    split_at: BinlogPosition = BinlogPosition()
    """The last record that it shares with its parent."""


class TableBinlogs(msgspec.Struct, frozen=True):
    """The identity and partitions of a table."""

    table: str
    incarnation: int
    partitions: tuple[PartitionSlots, ...]


class BinlogWant(msgspec.Struct, frozen=True):
    """A request for the records of one partition."""

    partition: int
    position: BinlogPosition
    """A position that the binlog must contain."""
    first: int
    """Sequence of the first wanted record."""


class BinlogAnswer(msgspec.Struct, frozen=True):
    """A master's answer for one partition."""

    partition: int
    state: BinlogState
    """`moved`: another node is master. `unknown`: the binlog lacks the position. `purged`: it lacks
    the wanted records."""
    reached: int = 0
    """All records up to this one are done."""
    records: tuple[bytes, ...] = ()


class BinlogAnswers(msgspec.Struct, frozen=True):
    """One master's answers."""

    partitions: int
    """Number of the table's partitions, as the master knew it then."""
    answers: tuple[BinlogAnswer, ...]


class KeysNow(msgspec.Struct, frozen=True):
    """The values of keys at a position."""

    position: BinlogPosition
    writes: tuple[KeyWrite, ...]
    """Of the first requested keys."""


class Binlogs:
    """Reads a table's binlogs; made by `AsyncKv`."""

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
        """Groups partitions by their master's address; None: no known master."""
        found: dict[str | None, list[PartitionSlots]] = {}
        for each in partitions:
            found.setdefault(self._nodes.map.masters[each.first], []).append(each)
        return found

    async def look(self) -> None:
        """Updates the map of masters."""
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
        """Returns records of partitions of one master, once there are some, or after `wait_ms`.
        Also returns a refusal: then the caller should `look` for the master.
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
        """Returns the last sequence that a master's binlog shares with a binlog of these epochs;
        None if that is no longer known, or the next records are purged.
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
        """Returns the present values of the first keys, at least of one; None if the master's
        binlog does not contain the position.
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
